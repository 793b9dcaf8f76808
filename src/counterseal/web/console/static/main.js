// Enhances pages that also work without scripts.
import { startCopying } from "./copy.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startTimes } from "./times.js";

// Sends a deciding form once, however often its button is pressed.
function sendOnce() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("[data-once]")) return;
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "1";
    setTimeout(() => form.querySelectorAll("button").forEach((button) => (button.disabled = true)));
  });
  // A page from the browser's cache can be sent again.
  addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("[data-once][data-sent]")) {
      delete form.dataset.sent;
      form.querySelectorAll("button").forEach((button) => (button.disabled = false));
    }
  });
}

// Closes a menu with Escape, and on a click elsewhere.
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

// Hides the links to the forms while the forms are visible.
function hideThumb() {
  const thumb = document.querySelector(".thumb");
  const forms = document.getElementById("forms");
  if (!thumb || !forms) return;
  const toggle = ([entry]) => thumb.classList.toggle("away", entry.isIntersecting);
  new IntersectionObserver(toggle, { rootMargin: "0px 0px -120px" }).observe(forms);
}

document.getElementById("alert")?.focus();
sendOnce();
closeMenus();
hideThumb();
startTimes();
startCopying();
startKeys();
startLive();
