"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  };

  document.documentElement.classList.add("scripted");

  // -- a table that is wider than the window says so
  const boxes = [...document.querySelectorAll(".scroll")];
  const measure = () => boxes.forEach((box) => {
    const wide = box.scrollWidth > box.clientWidth + 1, hint = box.previousElementSibling.querySelector(".hint");
    box.classList.toggle("wide", wide);
    hint.classList.toggle("shown", wide);
  });
  addEventListener("resize", measure);
  measure();

  // -- light and dark: as the system says, until the button is pressed
  const theme = byId("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => { theme.textContent = isDark() ? "Light theme" : "Dark theme"; };
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; label(); });
  system.addEventListener("change", label);
  theme.hidden = false;
  label();

  // -- a link into a folded part opens it
  const reveal = () => {
    const target = location.hash.length > 1 ? byId(location.hash.slice(1)) : null;
    if (!target) return;
    let opened = false;
    for (let at = target; at; at = at.parentElement) {
      if (at.tagName === "DETAILS" && !at.open) { at.open = true; opened = true; }
    }
    if (opened) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();

  // -- paper shows everything
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of closed) part.open = false; });

  // -- rollouts
  const data = byId("rankings");
  if (!data) return;
  const rankings = JSON.parse(data.textContent);
  const KINDS = { "ground truth": ["G", "k-truth"], "decoy": ["D", "k-decoy"], "look-alike": ["L", "k-look"], "neither": ["·", ""], "": ["", ""] };
  const who = byId("pick-estimator"), places = byId("pick-place"), strip = byId("strip");
  let ranking = null, at = 0;

  // tokens without a text of their own: what stands in their place, and what they are
  const BLANKS = {
    end: ["end", "end of the answer"], special: ["special", "a special token that is no text"],
    part: ["+", "more of the character before it"],
  };
  // what is not to be seen, or would turn the order of letters round, as an escape
  const escaped = (letter) => "\\u" + letter.codePointAt(0).toString(16).padStart(4, "0");
  const seen = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, escaped);

  const fixed = (value, digits) => value === null ? "–" : value.toFixed(digits);
  const figure = (name, value) => { const box = make("div"); box.append(make("dt", name), make("dd", value)); return box; };

  const completion = (rollout) => {
    const marked = new Set(rollout.behavior), blank = new Map(rollout.blank), scores = rollout.scores;
    const most = scores ? Math.max(1e-12, ...scores.map(Math.abs)) : 1;
    return rollout.tokens.map((token, number) => {
      const piece = make(marked.has(number) ? "mark" : "span", seen(token));
      if (blank.has(number)) {
        piece.classList.add("blank");
        piece.dataset.name = BLANKS[blank.get(number)][0];
        piece.title = BLANKS[blank.get(number)][1];
      }
      if (scores) {
        const share = Math.round(Math.abs(scores[number]) / most * 50);
        if (share > 2) piece.style.backgroundColor = `color-mix(in srgb, var(${scores[number] > 0 ? "--blue" : "--orange"}) ${share}%, transparent)`;
        piece.title = `${piece.title ? piece.title + "; " : ""}token score ${scores[number]}`;
      }
      return piece;
    });
  };

  const strongest = (rollout) => {
    if (!rollout.scores) return "";
    const blank = new Map(rollout.blank);
    const name = (token, number) => blank.has(number) ? BLANKS[blank.get(number)][1] : `“${seen(token).trim() || token}”`;
    const order = rollout.scores.map((score, number) => [score, name(rollout.tokens[number], number)]).sort((a, b) => b[0] - a[0]).slice(0, 5);
    return "Highest token scores: " + order.map(([score, named]) => `${named} ${score}`).join(", ") + ".";
  };

  const show = () => {
    const rollout = ranking.rollouts[at], count = ranking.rollouts.length;
    byId("position").replaceChildren(make("span", `Rank ${rollout.rank} (${at + 1} of ${count} shown) `));
    if (rollout.kind) byId("position").append(make("span", rollout.kind, `chip ${KINDS[rollout.kind][1] || "v-na"}`));
    byId("figures").replaceChildren(
      figure("score", rollout.score === null ? "–" : rollout.score.toPrecision(4)), figure("step", String(rollout.step)),
      figure("advantage", fixed(rollout.advantage, 2)), figure("reward", fixed(rollout.reward, 2)),
      figure("fluency (nats a token)", fixed(rollout.fluency, 2)));
    byId("prompt").textContent = seen(rollout.prompt);
    byId("completion").replaceChildren(...completion(rollout));
    byId("key").textContent = "(bold, underlined: the behaviour" + (rollout.scores ? "; blue shade: token scored up, orange: down" : "")
      + (rollout.blank.length ? "; in a box: a token without text, such as the end of the answer)" : ")");
    byId("strongest").textContent = strongest(rollout);
    byId("note").textContent = seen(ranking.note);
    byId("previous").disabled = at === 0;
    byId("next").disabled = at === count - 1;
    [...strip.children].forEach((button, number) => button.setAttribute("aria-current", String(number === at)));
  };

  const step = (by) => { at = Math.max(0, Math.min(ranking.rollouts.length - 1, at + by)); show(); };

  const pick = (chosen) => {
    ranking = chosen;
    at = Math.min(at, ranking.rollouts.length - 1);
    strip.replaceChildren(...ranking.rollouts.map((rollout, number) => {
      const [letter, name] = KINDS[rollout.kind], button = make("button", letter || String(rollout.rank), name);
      button.type = "button";
      button.setAttribute("aria-label", `rank ${rollout.rank}${rollout.kind ? ": " + rollout.kind : ""}`);
      button.title = button.getAttribute("aria-label");
      button.addEventListener("click", () => { at = number; show(); });
      return button;
    }));
    show();
  };

  const fillPlaces = () => {
    const own = rankings.filter((entry) => entry.estimator === who.value), before = places.value;
    places.replaceChildren(...own.map((entry) => make("option", entry.place)));
    if (own.some((entry) => entry.place === before)) places.value = before;
    pick(own[places.selectedIndex]);
  };

  who.replaceChildren(...[...new Set(rankings.map((entry) => entry.estimator))].map((name) => {
    const option = make("option", seen(name)); option.value = name; option.dir = "auto"; return option;
  }));
  who.addEventListener("change", fillPlaces);
  places.addEventListener("change", () => pick(rankings.filter((entry) => entry.estimator === who.value)[places.selectedIndex]));
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  byId("viewer").addEventListener("keydown", (event) => {
    if (event.target.tagName === "SELECT" || event.altKey || event.ctrlKey || event.metaKey) return;
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by) { event.preventDefault(); step(by); }
  });
  byId("viewer").hidden = false;
  fillPlaces();
})();
