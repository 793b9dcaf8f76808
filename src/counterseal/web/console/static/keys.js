// j and k go through the rows, a and r to the two forms, u back, / to the search, ? to the help.
// No key decides anything: keys move the focus to a form, which the person submits.
const GOAL = "counterseal goal";
const rows = () => [...document.querySelectorAll("[data-row]")];
const link = (row) => row?.querySelector("[data-open]");
const current = () => document.activeElement?.closest?.("[data-row]");

function step(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(current());
  const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
  link(all[next])?.focus();
}

// In a list, opens the focused request at its form. On its page, focuses the form's first field.
function decide(name) {
  const form = document.getElementById(name);
  if (form) {
    const field = form.querySelector("[required]") ?? form.querySelector("button[type=submit]");
    field.focus();
    form.scrollIntoView({ block: "nearest" });
    return;
  }
  const open = link(current());
  if (!open) return;
  sessionStorage.setItem(GOAL, name);
  open.click();
}

// Focuses the form that a key in the list asked for. A `#` in the address would lose the focus.
function arrive() {
  const name = sessionStorage.getItem(GOAL);
  sessionStorage.removeItem(GOAL);
  if (name) decide(name);
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  a: () => decide("approve"),
  r: () => decide("reject"),
  u: () => document.querySelector("[data-up]")?.click(),
  "/": () => document.querySelector("[data-search]")?.focus(),
  "?": () => document.getElementById("keys")?.showModal(),
};

const writing = (element) => element?.matches?.("input, select, textarea, [contenteditable]");

export function startKeys() {
  if (!document.getElementById("keys")) return;
  document.querySelector(".keys-hint").hidden = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (writing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const act = KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  arrive();
}
