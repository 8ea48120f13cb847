"use strict";
for (const element of document.querySelectorAll(".scripted")) element.hidden = false;
const cases = [...document.querySelectorAll(".case")];
const search = document.getElementById("search");
const warning = document.getElementById("warning");
const count = document.getElementById("count");
function filter() {
  const wanted = search.value.trim().toLowerCase();
  let shown = 0;
  for (const element of cases) {
    const own = element.dataset.warnings.split("|").filter(Boolean);
    const fits = !warning.value || (warning.value === "*" ? own.length > 0 : own.includes(warning.value));
    element.hidden = !(fits && element.dataset.name.includes(wanted));
    shown += !element.hidden;
  }
  count.textContent = `${shown} of ${cases.length} case${cases.length === 1 ? "" : "s"}`;
}
search.addEventListener("input", filter);
warning.addEventListener("change", filter);
document.querySelector("form.controls").addEventListener("submit", (event) => event.preventDefault());
// A link to a case that the filter hides shows all.
window.addEventListener("hashchange", () => {
  const target = document.querySelector(location.hash || "body");
  if (target && target.hidden) {
    search.value = warning.value = "";
    filter();
    target.scrollIntoView();
  }
});
for (const stack of document.querySelectorAll(".slices")) {
  const slices = [...stack.querySelectorAll(".slice")];
  const range = stack.querySelector("input");
  const show = () => {
    slices.forEach((slice, k) => slice.classList.toggle("shown", k === Number(range.value)));
    const title = slices[Number(range.value)].dataset.title;
    stack.querySelector(".title").textContent = title;
    range.setAttribute("aria-valuetext", title);
  };
  range.hidden = slices.length < 2;
  range.addEventListener("input", show);
  show();
}
filter();
