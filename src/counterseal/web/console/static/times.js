// Countdowns by the server's clock, and times in the reader's own zone.
const ahead = Number(document.body.dataset.now) * 1000 - Date.now();

export const now = () => (Date.now() + ahead) / 1000;

function left(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const parts = [];
  let rest = Math.floor(seconds);
  for (const [size, word] of units) {
    const count = Math.floor(rest / size);
    rest %= size;
    if (count || (parts.length && word === "s")) parts.push(`${count} ${word}`);
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}

function tick() {
  for (const element of document.querySelectorAll("[data-countdown]")) {
    const seconds = Number(element.dataset.countdown) - now();
    const text = seconds > 0 ? left(seconds) : "expired";
    if (element.textContent !== text) element.textContent = text;
    element.classList.toggle("soon", seconds < 120);
  }
}

// Runs again on each element that was replaced.
export function treatTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]:not([data-local])")) {
    element.dataset.local = "";
    const moment = new Date(element.dateTime);
    if (Number.isNaN(moment.valueOf())) continue;
    const here = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    element.title = `${here} your time`;
  }
  tick();
}

export function startTimes() {
  treatTimes(document);
  setInterval(tick, 1000);
}
