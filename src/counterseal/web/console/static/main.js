// What scripts add to pages that work without them.
import { startCopying } from "./copy.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startTimes } from "./times.js";

// A form that decides something is sent once, however often its button is pressed.
function sendOnce() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("[data-once]")) return;
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "1";
    setTimeout(() => form.querySelectorAll("button").forEach((button) => (button.disabled = true)));
  });
  // A page that the browser kept, and shows anew, can be sent anew.
  addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("[data-once][data-sent]")) {
      delete form.dataset.sent;
      form.querySelectorAll("button").forEach((button) => (button.disabled = false));
    }
  });
}

// A menu closes with Escape, and when somebody turns to something else.
function closeMenus() {
  const open = () => document.querySelector("details.menu[open]");
  document.addEventListener("click", (event) => {
    const menu = open();
    if (menu && !menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const menu = open();
    if (event.key !== "Escape" || !menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}

// The way to the forms is of no use where they are.
function hideThumb() {
  const thumb = document.querySelector(".thumb");
  const forms = document.getElementById("forms");
  if (!thumb || !forms) return;
  const seen = ([entry]) => thumb.classList.toggle("away", entry.isIntersecting);
  new IntersectionObserver(seen, { rootMargin: "0px 0px -120px" }).observe(forms);
}

document.getElementById("alert")?.focus();
sendOnce();
closeMenus();
hideThumb();
startTimes();
startCopying();
startKeys();
startLive();
