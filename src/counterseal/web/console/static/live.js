// Pages stay current: the server tells that something has changed, and the page is fetched anew.
// Of all open pages of a tenant one listens, and tells the others, for browsers let only a handful
// of connections be open.
import { treatCopying } from "./copy.js";
import { treatTimes } from "./times.js";

const { user, tenant } = document.body.dataset;
const RETRY = 30000;
let known = {};
let busy = false;
let again = false;
let ended = false;

const topics = (element) => element.dataset.live.split(" ");

function say(text, href, link) {
  const notice = document.getElementById("notice");
  notice.textContent = `${text} `;
  if (href) {
    const anchor = document.createElement("a");
    anchor.href = href;
    anchor.textContent = link;
    notice.append(anchor);
  }
  notice.hidden = false;
}

const summary = (details) => details.querySelector("summary").textContent;

// The new page in the place of the old, where it says so; what has the focus keeps it, and what is
// open stays open.
function replace(old, fresh) {
  if (old.dataset.liveKey !== undefined && old.dataset.liveKey === fresh.dataset.liveKey) return;
  if (old.innerHTML === fresh.innerHTML) return;
  const before = new Set([...old.querySelectorAll("[data-row]")].map((row) => row.dataset.row));
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const row = focused?.closest("[data-row]")?.dataset.row;
  const open = new Set([...old.querySelectorAll("details[open]")].map(summary));
  const folded = focused?.matches("summary") ? focused.textContent : null;
  old.replaceWith(document.adoptNode(fresh));
  for (const one of fresh.querySelectorAll("details")) {
    if (open.has(summary(one))) one.open = true;
    if (summary(one) === folded) one.querySelector("summary").focus();
  }
  for (const one of fresh.querySelectorAll("[data-row]")) {
    if (!before.has(one.dataset.row)) one.classList.add("new");
    if (one.dataset.row === row) one.querySelector("[data-open]")?.focus();
  }
  treatTimes(fresh);
  treatCopying(fresh);
}

async function refresh() {
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { "Counterseal-Live": "1" } });
    if (answer.status >= 500) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const mine = page.body.dataset;
    ended = mine.user !== user || mine.tenant !== tenant;
    if (mine.user !== user) {
      say("You are signed out.", `/sign-in?next=${encodeURIComponent(location.pathname)}`, "Sign in");
      return;
    }
    if (mine.tenant !== tenant) {
      say(`You work in ${mine.tenant} now; this page is of ${tenant}.`, "/", "To the inbox");
      return;
    }
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(old.id);
      if (fresh) replace(old, fresh);
    }
    document.title = page.title;
  } catch {
    // The next change, or the next connection, tries again.
  } finally {
    busy = false;
    if (again) {
      again = false;
      refresh();
    }
  }
}

function heard(marks) {
  const shown = new Set([...document.querySelectorAll("[data-live]")].flatMap(topics));
  const changed = Object.keys(marks).filter((topic) => marks[topic] !== known[topic]);
  known = marks;
  if (changed.some((topic) => shown.has(topic))) refresh();
}

// Listens until the connection is over for good; the browser mends all others by itself.
function connection(tell) {
  return new Promise((over) => {
    const source = new EventSource(`/events?tenant=${encodeURIComponent(tenant)}`);
    const close = async () => {
      source.close();
      await refresh();
      over();
    };
    source.addEventListener("marks", (event) => tell(JSON.parse(event.data)));
    source.addEventListener("over", close);
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) close();
    });
  });
}

async function listen(tell) {
  while (!ended) {
    await connection(tell);
    if (!ended) await new Promise((done) => setTimeout(done, RETRY));
  }
}

export function startLive() {
  if (!user || !document.querySelector("[data-live]") || !window.EventSource) return;
  known = JSON.parse(document.body.dataset.marks);
  if (!navigator.locks || !window.BroadcastChannel) {
    listen(heard);
    return;
  }
  const name = `counterseal ${tenant} ${user}`;
  const channel = new BroadcastChannel(name);
  let latest = null;
  channel.addEventListener("message", ({ data }) => {
    if (data !== "what is new?") heard(data);
    else if (latest) channel.postMessage(latest);
  });
  channel.postMessage("what is new?");
  navigator.locks.request(name, () =>
    listen((marks) => {
      latest = marks;
      channel.postMessage(marks);
      heard(marks);
    }),
  );
}
