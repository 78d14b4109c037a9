"use strict";
// Draws the figures of the visible tab with plotly, in the colours of the theme; tabs, theme switch, printing.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const PALETTES = {
    light: {
      runs: ["#0072B2", "#D55E00", "#7216CE", "#85422C", "#008A64", "#B5508A", "#666666"],
      fg: "#1c2430", muted: "#c3c9d2", grid: "#e6e9ee", good: "#00795a", bad: "#c0392b", panel: "#ffffff",
      heat: [[0, "#f4f7fb"], [0.25, "#bcd7ea"], [0.5, "#6aa5cf"], [0.75, "#20669f"], [1, "#08264a"]],
    },
    dark: {
      runs: ["#56B4E9", "#F0A04B", "#825EED", "#D6247C", "#35C79B", "#E8D44D", "#A8A8A8"],
      fg: "#e6e9ef", muted: "#4a5361", grid: "#2b323d", good: "#35C79B", bad: "#ff7b6b", panel: "#171c24",
      heat: [[0, "#1b222c"], [0.25, "#12436b"], [0.5, "#1f7ab8"], [0.75, "#7cc4ee"], [1, "#f4fbff"]],
    },
  };

  function theme() {
    if (printing) return "light";
    const chosen = root.dataset.theme;
    if (chosen === "light" || chosen === "dark") return chosen;
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  function faded(color, share) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    return `rgba(${r},${g},${b},${share})`;
  }

  function resolve(value, palette) {
    if (typeof value === "string" && value.startsWith("@")) {
      if (value === "@heat") return palette.heat;
      const [name, share] = value.slice(1).split(":");
      const color = /^\d+$/.test(name) ? palette.runs[Number(name) % palette.runs.length] : palette[name];
      return share ? faded(color, Number(share)) : color;
    }
    if (Array.isArray(value)) return value.map((one) => resolve(one, palette));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, resolve(one, palette)]));
    }
    return value;
  }

  function layoutOf(figure, palette, width) {
    const layout = resolve(figure.layout, palette);
    const axis = (own) => {
      const titled = { ...own };
      titled.title = { standoff: 8, font: { size: 12 }, ...(own.title || {}) };
      return { gridcolor: palette.grid, zerolinecolor: palette.grid, linecolor: palette.grid, automargin: true, ...titled };
    };
    for (const key of ["xaxis", "yaxis"]) layout[key] = axis(layout[key] || {});
    const narrow = width < 520;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: narrow ? 11 : 12, color: palette.fg },
      margin: { l: narrow ? 40 : 52, r: narrow ? 8 : 14, t: 12, b: 40 },
      showlegend: false,
      hoverlabel: { bgcolor: palette.panel, bordercolor: palette.muted, font: { color: palette.fg } },
      hovermode: "closest", hoverdistance: 40, dragmode: narrow ? false : "zoom", height: figure.height, autosize: true, ...layout,
    };
  }

  let printing = false;

  // A legend of our own, above the plot: it wraps on a phone and leaves the plot its width.
  function legend(node, traces, palette) {
    let list = node.previousElementSibling;
    if (!list || !list.classList.contains("legend")) {
      list = document.createElement("ul");
      list.className = "legend";
      list.setAttribute("aria-hidden", "true"); // the table under the figure says the same
      node.before(list);
    }
    const named = traces.filter((one) => one.name && (one.type === "scatter" || one.type === "bar"));
    list.replaceChildren(...(named.length > 1 ? named.map((one) => entry(one, palette)) : []));
  }

  const DASH = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "12 4", longdashdot: "12 3 2 3" };
  const MARK = {
    circle: '<circle cx="13" cy="7" r="5"/>', diamond: '<path d="M13 1l6 6-6 6-6-6z"/>', square: '<rect x="8" y="2" width="10" height="10"/>',
  };
  const PATTERN = {
    "": "", "/": "M0 14L12 0M7 14L19 0", "\\": "M0 0L12 14M7 0L19 14", "-": "M0 4.5H19M0 9.5H19", "|": "M5 0V14M10 0V14M15 0V14",
    "x": "M0 0L14 14M14 0L0 14M7 0L19 12", "+": "M0 5H19M0 10H19M6 0V14M13 0V14", ".": "M4 4h1M10 4h1M16 4h1M7 10h1M13 10h1",
  };

  function entry(trace, palette) {
    const item = document.createElement("li");
    const lines = trace.type === "scatter" && trace.mode.includes("lines");
    let picture;
    if (lines) {
      const { color, dash, width } = trace.line;
      picture = `<path d="M0 7H26" stroke="${color}" stroke-width="${Math.max(width || 2, 2)}" stroke-dasharray="${DASH[dash || "solid"]}" fill="none"/>`;
      if (trace.fill) picture += `<rect y="3" width="26" height="11" fill="${color}" opacity="0.5"/>`;
    } else if (trace.type === "scatter") {
      picture = `<g fill="${trace.marker.color}">${MARK[trace.marker.symbol || "circle"]}</g>`;
    } else {
      const marks = PATTERN[(trace.marker.pattern || {}).shape || ""];
      picture = `<rect x="3" width="19" height="14" fill="${trace.marker.color}"/><path transform="translate(3 0)" d="${marks}" stroke="${palette.panel}" stroke-width="1.5" opacity="0.6"/>`;
    }
    item.innerHTML = `<svg width="26" height="14" viewBox="0 0 26 14">${picture}</svg>`;
    item.append(trace.name);
    return item;
  }

  function draw(node) {
    const figure = figures[node.dataset.figure];
    const palette = PALETTES[theme()];
    const width = printing ? 680 : node.clientWidth;
    const layout = layoutOf(figure, palette, width);
    if (printing) layout.width = width;
    const config = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false };
    const traces = resolve(figure.data, palette);
    if (figure.legend) legend(node, traces, palette);
    return Plotly.react(node, traces, layout, config);
  }

  function drawVisible(everything) {
    if (!window.Plotly) return Promise.resolve();
    const waiting = [];
    for (const node of document.querySelectorAll("[data-figure]")) {
      if (everything || node.closest("[role=tabpanel]").classList.contains("current")) waiting.push(draw(node));
    }
    return Promise.all(waiting);
  }

  // tabs -----------------------------------------------------------------------------------------------------
  const tabs = [...document.querySelectorAll("[role=tab]")];

  function select(tab, focus) {
    for (const one of tabs) {
      const on = one === tab;
      one.setAttribute("aria-selected", String(on));
      one.tabIndex = on ? 0 : -1;
      document.getElementById(one.getAttribute("aria-controls")).classList.toggle("current", on);
    }
    if (focus) tab.focus();
    tab.scrollIntoView({ block: "nearest", inline: "center" });
    drawVisible(false);
  }

  tabs.forEach((tab, at) => {
    tab.addEventListener("click", () => {
      select(tab, false);
      history.replaceState(null, "", "#" + tab.dataset.key);
    });
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs[(to + tabs.length) % tabs.length];
      select(next, true);
      history.replaceState(null, "", "#" + next.dataset.key);
    });
  });

  function fromAddress() {
    const wanted = tabs.find((tab) => "#" + tab.dataset.key === location.hash);
    if (wanted) select(wanted, false);
    return Boolean(wanted);
  }
  addEventListener("hashchange", fromAddress);
  if (!fromAddress()) select(tabs[0], false);

  // theme, printing ------------------------------------------------------------------------------------------
  const button = document.getElementById("theme");
  function label() {
    const next = theme() === "dark" ? "light" : "dark";
    button.textContent = next === "dark" ? "Dark" : "Light";
    button.setAttribute("aria-label", `Switch to the ${next} theme`);
  }
  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    label();
    drawVisible(false);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    label();
    drawVisible(false);
  });
  label();
  addEventListener("beforeprint", () => {
    printing = true;
    root.classList.add("printing");
    drawVisible(true);
  });
  addEventListener("afterprint", () => {
    printing = false;
    root.classList.remove("printing");
    drawVisible(false);
  });

  // plotly travels compressed inside this file -----------------------------------------------------------------
  async function unpack() {
    const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }
  const start = () =>
    unpack()
      .then(() => drawVisible(false))
      .then(() => root.classList.add("drawn"))
      .catch((error) => {
        root.classList.add("undrawn");
        document.getElementById("trouble").textContent =
          `The figures could not be drawn (${error.message}); each one's data is in the table under it.`;
        for (const one of document.querySelectorAll("figure details")) one.open = true;
      });
  requestAnimationFrame(() => setTimeout(start, 0));
})();
