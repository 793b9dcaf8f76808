// Buttons that copy. They stay hidden where the browser cannot copy.
async function copy(button) {
  const box = button.closest(".box");
  const text = button.dataset.copy ?? box?.querySelector("pre")?.textContent ?? "";
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not copied";
  }
  setTimeout(() => (button.textContent = before), 1500);
}

export function treatCopying(root) {
  if (!navigator.clipboard) return;
  for (const button of root.querySelectorAll("button.copy")) button.hidden = false;
}

export function startCopying() {
  treatCopying(document);
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button.copy");
    if (button) copy(button);
  });
}
