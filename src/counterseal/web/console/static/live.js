// Keeps pages current: the server reports a change, and the page fetches itself again. Only one open
// page of a tenant listens and informs the others, because browsers limit connections per server.
import { treatCopying } from "./copy.js";
import { treatTimes } from "./times.js";

const { user, tenant } = document.body.dataset;
const RETRY = 30000;
let known = {};
let busy = false;
let again = false;
let ended = false;

const topics = (element) => element.dataset.live.split(" ");

function notify(text, href, link) {
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

// Replaces an element by its new version. Focus and open details are kept.
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
      notify("You are signed out.", `/sign-in?next=${encodeURIComponent(location.pathname)}`, "Sign in");
      return;
    }
    if (mine.tenant !== tenant) {
      notify(`You are now in ${mine.tenant}; this page shows ${tenant}.`, "/", "To the inbox");
      return;
    }
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(old.id);
      if (fresh) replace(old, fresh);
    }
    document.title = page.title;
  } catch {
    // The next change or connection tries again.
  } finally {
    busy = false;
    if (again) {
      again = false;
      refresh();
    }
  }
}

function update(marks) {
  const shown = new Set([...document.querySelectorAll("[data-live]")].flatMap(topics));
  const changed = Object.keys(marks).filter((topic) => marks[topic] !== known[topic]);
  known = marks;
  if (changed.some((topic) => shown.has(topic))) refresh();
}

// Listens until the connection is closed for good; the browser reconnects by itself otherwise.
function connection(onMarks) {
  return new Promise((resolve) => {
    const source = new EventSource(`/events?tenant=${encodeURIComponent(tenant)}`);
    const close = async () => {
      source.close();
      await refresh();
      resolve();
    };
    source.addEventListener("marks", (event) => onMarks(JSON.parse(event.data)));
    source.addEventListener("over", close);
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) close();
    });
  });
}

async function listen(onMarks) {
  while (!ended) {
    await connection(onMarks);
    if (!ended) await new Promise((done) => setTimeout(done, RETRY));
  }
}

export function startLive() {
  if (!user || !document.querySelector("[data-live]") || !window.EventSource) return;
  known = JSON.parse(document.body.dataset.marks);
  if (!navigator.locks || !window.BroadcastChannel) {
    listen(update);
    return;
  }
  const name = `counterseal ${tenant} ${user}`;
  const channel = new BroadcastChannel(name);
  let latest = null;
  channel.addEventListener("message", ({ data }) => {
    if (data !== "latest?") update(data);
    else if (latest) channel.postMessage(latest);
  });
  channel.postMessage("latest?");
  navigator.locks.request(name, () =>
    listen((marks) => {
      latest = marks;
      channel.postMessage(marks);
      update(marks);
    }),
  );
}
