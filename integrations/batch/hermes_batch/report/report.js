"use strict";
(() => {
  const PAGE = 200;
  const NAMES = ["id", "sample", "word", "kind", "finish", "why", "turns", "calls", "tokens", "cost", "seconds", "reward", "prompt", "group", "errors", "transcript", "place"];
  const find = (id) => document.getElementById(id);
  let rows = [], shown = [], drawn = 0;

  async function unpack(id) {
    const bytes = Uint8Array.from(atob(find(id).textContent), (character) => character.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  }

  // Texts of models and programs are only ever set as textContent. Transcripts are escaped by the program that wrote the
  // page, and the policy of the page allows no script but this one.
  function make(tag, cls, text) {
    const element = document.createElement(tag);
    if (cls) element.className = cls;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function count(number) {
    for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (number >= size) return (number / size).toPrecision(3) + unit;
    }
    return String(number);
  }

  function facts(list) {
    const sum = (name) => list.reduce((total, row) => total + row[name], 0);
    const calls = sum("calls"), cost = sum("cost"), parts = [`${calls} call${calls === 1 ? "" : "s"}`];
    if (sum("tokens")) parts.push(`${count(sum("tokens"))} tokens`);
    if (cost) parts.push(`cost ${Number(cost.toPrecision(2))}`);
    parts.push(`${sum("seconds").toFixed(1)} s`);
    return parts;
  }

  function summary(badge, kind, name, prompt, list) {
    const line = make("summary"), figures = make("span", "facts");
    line.append(make("span", `badge ${kind}`, badge), make("code", "", name), make("span", "prompt", prompt));
    for (const fact of facts(list)) figures.append(make("span", "", fact));
    line.append(figures);
    return line;
  }

  async function open(details, row) {
    const content = make("div", "conversation", "…");
    details.append(content);
    if (row.transcript < 0) {
      content.textContent = `This page has no more room for conversations: this one is in ${row.place}.`;
    } else {
      content.innerHTML = await unpack(`t${row.transcript}`);
    }
  }

  function episode(row) {
    const details = make("details", `episode ${row.kind}`), name = row.sample ? `${row.id} #${row.sample}` : row.id;
    const line = summary(row.word, row.kind, name, row.prompt, [row]);
    if (row.why) line.append(make("span", "why", row.why));
    details.append(line);
    details.addEventListener("toggle", () => open(details, row), { once: true });
    return details;
  }

  function group(list) {
    if (list.length === 1) return episode(list[0]);
    const details = make("details", "group"), solved = list.filter((row) => row.word === "solved").length;
    const checked = solved + list.filter((row) => row.word === "unsolved").length;
    const kind = !checked ? "unscored" : !solved ? "unsolved" : solved === checked ? "solved" : "other";
    details.append(summary(`${solved} of ${checked}`, kind, list[0].id, list[0].prompt, list));
    details.addEventListener("toggle", () => {
      const samples = make("div", "samples");
      samples.append(...list.map(episode));
      details.append(samples);
    }, { once: true });
    return details;
  }

  function matches() {
    const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const outcome = document.querySelector('input[name="show"]:checked').value;
    const finish = find("finish").value, error = find("error").value;
    return rows.filter((row) => (!outcome || row.kind === outcome) && (!finish || row.finish === finish)
      && (!error || row.errors.includes(error)) && words.every((word) => row.text.includes(word)));
  }

  function order(list) {
    const name = find("sort").value, sign = name === "reward" ? 1 : -1;
    if (!name) return list;
    const value = (item) => item.reduce((total, row) => total + (row[name] ?? 0), 0) / (name === "reward" ? item.length : 1);
    return list.map((item) => [value(item), item]).sort((a, b) => sign * (a[0] - b[0])).map(([, item]) => item);
  }

  function draw() {
    const chosen = matches(), groups = new Map(), grouped = find("grouped");
    for (const row of chosen) {
      const key = grouped && grouped.checked ? row.group : row.number;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(row);
    }
    shown = order([...groups.values()]);
    find("count").textContent = chosen.length === rows.length ? `${rows.length} records` : `${chosen.length} of ${rows.length} records`;
    find("list").replaceChildren();
    drawn = 0;
    more();
  }

  function more() {
    find("list").append(...shown.slice(drawn, drawn + PAGE).map(group));
    drawn = Math.min(shown.length, drawn + PAGE);
    find("more").hidden = drawn === shown.length;
    find("more").textContent = `Show more (${shown.length - drawn} left)`;
  }

  function fill(id, values) {
    for (const value of [...new Set(values)].sort()) find(id).append(new Option(value, value));
    find(id).hidden = find(id).options.length < 2;
  }

  async function start() {
    rows = JSON.parse(await unpack("rows")).map((values, number) => {
      const row = Object.fromEntries(NAMES.map((name, at) => [name, values[at]]));
      return { ...row, number, text: [row.id, row.prompt, row.why, row.finish, ...row.errors].join(" ").toLowerCase() };
    });
    fill("finish", rows.map((row) => row.finish));
    fill("error", rows.flatMap((row) => row.errors));
    for (const control of document.querySelectorAll("#controls input, #controls select")) control.addEventListener("input", draw);
    find("more").addEventListener("click", more);
    find("controls").hidden = false;
    draw();
  }
  start();
})();
