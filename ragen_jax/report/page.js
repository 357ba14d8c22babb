"use strict";
(() => {
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  const rollouts = JSON.parse(document.getElementById("rollout-data").textContent);
  if (!rollouts.length) return;
  const by = (id) => document.getElementById(id);
  by("reader").hidden = false;

  // Text from rollouts enters the page as text nodes only.
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const number = (x) => (typeof x === "number" ? (x > 0 ? "+" : "") + String(Math.round(x * 1000) / 1000) : "–");
  const text = (x) => (typeof x === "string" ? x : x === null || x === undefined ? "" : JSON.stringify(x));

  const fill = (select, values, all) => {
    const unique = [...new Set(values)];
    unique.sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : 1));
    if (all) select.append(new Option("all", ""));
    for (const value of unique) select.append(new Option(String(value), String(value)));
    if (unique.length < 2) select.closest("label").hidden = true;
  };
  fill(by("f-split"), rollouts.map((r) => r.split), true);
  fill(by("f-step"), rollouts.map((r) => r.step), true);
  fill(by("f-tag"), rollouts.map((r) => r.tag), true);

  let chosen = [];
  let at = 0;

  const select = () => {
    const split = by("f-split").value, step = by("f-step").value, tag = by("f-tag").value, outcome = by("f-outcome").value;
    chosen = rollouts.filter((r) =>
      (!split || String(r.split) === split) && (!step || String(r.step) === step) && (!tag || String(r.tag) === tag) &&
      (!outcome || Boolean(r.success) === (outcome === "success")));
    at = 0;
    const strip = by("strip");
    strip.replaceChildren(...chosen.map((r, i) => {
      const button = make("button", r.success ? "won" : "");
      button.type = "button";
      button.title = name(r);
      button.addEventListener("click", () => go(i));
      return button;
    }));
    show();
  };

  const name = (r) => `${text(r.split)} · step ${text(r.step)} · prompt ${text(r.group)} · episode ${text(r.member)}`;

  const heading = (r) => {
    const box = make("div", "heading");
    box.append(make("span", r.success ? "badge won" : "badge", r.success ? "success" : "failure"));
    box.append(make("b", "", name(r)));
    const facts = [`level ${text(r.level)}`, `reward ${number(r.reward)}`, `${r.turns.length} turns`];
    if (r.tag) facts.unshift(text(r.tag));
    if (r.kept === true) facts.push("kept by the filter");
    if (r.kept === false) facts.push("left out by the filter");
    box.append(make("span", "muted", facts.join(" · ")));
    return box;
  };

  const field = (box, label, value, className) => {
    box.append(make("p", "label", label));
    box.append(make("pre", className || "", value === "" ? "(empty)" : value));
  };

  const turn = (t, i) => {
    const card = make("article", "turn");
    const top = make("header");
    top.append(make("b", "", `Turn ${i + 1}`));
    top.append(make("span", "", `reward ${number(t.reward)}`));
    if (t.penalty) top.append(make("span", "warn", `penalty ${number(t.penalty)}`));
    if (t.valid === false) top.append(make("span", "warn", "not in the asked format"));
    card.append(top);
    const cols = make("div", "cols"), left = make("div"), right = make("div");
    field(left, "given", text(t.prompt), "given");
    field(right, "reasoning", text(t.reasoning));
    const actions = Array.isArray(t.actions) ? t.actions : [];
    right.append(make("p", "label", "actions"));
    const list = make("div", "actions");
    for (const action of actions) list.append(make("span", "", text(action)));
    if (!actions.length) list.append(make("em", "muted", "none understood"));
    right.append(list);
    if (text(t.answer) && !actions.length) field(right, "answer", text(t.answer));
    const raw = make("details");
    raw.append(make("summary", "", "as sampled"));
    raw.append(make("pre", "", text(t.response)));
    right.append(raw);
    cols.append(left, right);
    card.append(cols);
    return card;
  };

  const compare = () => {
    const grid = make("div", "compare");
    chosen.forEach((r) => {
      const card = make("article", r.success ? "won" : "");
      card.append(make("p", "label", name(r)));
      card.append(make("pre", "", text((r.turns[0] || {}).reasoning) || "(empty)"));
      grid.append(card);
    });
    const note = make("p", "muted",
      "First-turn reasoning under different prompts. If these read alike, reasoning does not depend on its input.");
    return [note, grid];
  };

  const show = () => {
    const side = by("f-view").value === "compare";
    by("strip").hidden = side;
    by("prev").disabled = side || at === 0;
    by("next").disabled = side || at >= chosen.length - 1;
    if (!chosen.length) {
      by("count").textContent = "none";
      by("episode").replaceChildren(make("p", "muted", "No rollout matches this selection."));
      return;
    }
    if (side) {
      by("count").textContent = `${chosen.length}`;
      by("episode").replaceChildren(...compare());
      return;
    }
    by("count").textContent = `${at + 1} of ${chosen.length}`;
    [...by("strip").children].forEach((b, i) => i === at ? b.setAttribute("aria-current", "true") : b.removeAttribute("aria-current"));
    const r = chosen[at];
    by("episode").replaceChildren(heading(r), ...r.turns.map(turn));
  };

  const go = (i) => {
    if (i < 0 || i >= chosen.length) return;
    at = i;
    show();
  };

  for (const id of ["f-split", "f-step", "f-tag", "f-outcome"]) by(id).addEventListener("change", select);
  by("f-view").addEventListener("change", show);
  by("prev").addEventListener("click", () => go(at - 1));
  by("next").addEventListener("click", () => go(at + 1));
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (/^(SELECT|INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (by("f-view").value === "compare") return;
    if (event.key === "ArrowLeft") go(at - 1);
    if (event.key === "ArrowRight") go(at + 1);
  });
  select();
})();
