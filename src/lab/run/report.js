'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const page = document.getElementById('page');
  const NS = 'http://www.w3.org/2000/svg';

  const html = (tag, props, ...children) => {
    const e = document.createElement(tag);
    for (const [k, v] of Object.entries(props || {})) e.setAttribute(k, v);
    e.append(...children.filter((c) => c !== null && c !== undefined));
    return e;
  };
  const svg = (tag, props, text) => {
    const e = document.createElementNS(NS, tag);
    for (const [k, v] of Object.entries(props)) e.setAttribute(k, v);
    if (text !== undefined) e.textContent = text;
    return e;
  };

  // A number with three digits that count, and a short unit of size.
  const short = (v) => {
    if (v === 0) return '0';
    const a = Math.abs(v);
    for (const [size, unit] of [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
      if (a >= size) return `${+(v / size).toPrecision(3)}${unit}`;
    }
    return `${+v.toPrecision(3)}`;
  };
  const span = (us) => us >= 1e6 ? `${(us / 1e6).toPrecision(3)} s`
    : us >= 1e3 ? `${(us / 1e3).toPrecision(3)} ms` : `${us.toPrecision(3)} us`;

  const isLog = (axis) => axis && axis.type === 'log';
  const isCategory = (axis, xs) => (axis && axis.type === 'category') || typeof xs[0] === 'string';

  const linearTicks = (lo, hi) => {
    const raw = (hi - lo) / 5 || 1;
    const base = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= raw);
    const out = [];
    for (let v = Math.ceil(lo / step) * step; v <= hi + step * 1e-9; v += step) out.push(v);
    return out;
  };
  const logTicks = (lo, hi) => {
    const out = [];
    const few = Math.log10(hi / lo) < 3;
    for (let d = Math.floor(Math.log10(lo)); d <= Math.ceil(Math.log10(hi)); d += 1) {
      for (const m of few ? [1, 2, 5] : [1]) {
        const v = m * 10 ** d;
        if (v >= lo * 0.999 && v <= hi * 1.001) out.push(v);
      }
    }
    return out;
  };

  // From values to pixels, with ticks.
  const scale = (axis, values, from, to, zero) => {
    const log = isLog(axis);
    const usable = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
    let lo = Math.min(...usable), hi = Math.max(...usable);
    if (!usable.length) { lo = log ? 1 : 0; hi = 1; }
    if (axis && axis.range) [lo, hi] = axis.range;
    if (!log && zero) { lo = Math.min(lo, 0); hi = Math.max(hi, 0); }
    if (lo === hi) { if (log) { lo /= 2; hi *= 2; } else { hi += 1; } }
    if (log) { const pad = (hi / lo) ** 0.03; lo /= pad; hi *= pad; }
    const f = log ? Math.log : (v) => v;
    const place = (v) => from + (f(Math.max(v, log ? lo : -Infinity)) - f(lo)) / (f(hi) - f(lo)) * (to - from);
    let ticks = (log ? logTicks(lo, hi) : linearTicks(lo, hi)).map((v) => [v, short(v)]);
    if (axis && axis.tickvals) {
      ticks = axis.tickvals.map((v, n) => [v, axis.ticktext[n]]).filter(([v]) => v >= lo && v <= hi);
    }
    return { place, ticks };
  };

  // Boxes by depth, as wide as their values; a chosen one becomes the whole.
  const drawFlame = (trace, box, chosen) => {
    box.replaceChildren();
    const at = new Map(trace.ids.map((id, n) => [id, n]));
    const children = trace.ids.map(() => []);
    trace.parents.forEach((p, n) => { if (p !== '') children[at.get(p)].push(n); });
    const width = Math.max(box.clientWidth, 260), row = 18;
    const root = svg('svg', { class: 'flame', role: 'img' });
    const say = html('p', { class: 'faint says' }, trace.text[chosen]);
    let depth = 0;
    const put = (n, x, y, w) => {
      if (w < 0.7) return;
      depth = Math.max(depth, y + row);
      const g = svg('g', {});
      g.append(svg('title', {}, `${trace.labels[n]}\n${trace.text[n]}`),
        svg('rect', { x, y, width: Math.max(w - 0.5, 0.5), height: row - 1, fill: trace.marker.colors[n], rx: 2 }));
      const fits = Math.floor((w - 6) / 6.3);
      if (fits >= 3) {
        // Where there is no room for all of a name, its end says most.
        const name = trace.labels[n], end = name.slice(Math.max(name.lastIndexOf('::'), 0));
        const clipped = end.length < fits ? `\u2026${end}` : `${end.slice(0, fits - 1)}\u2026`;
        g.append(svg('text', { class: 'frame', x: x + 4, y: y + 13 }, name.length > fits ? clipped : name));
      }
      g.addEventListener('click', () => drawFlame(trace, box, n));
      g.addEventListener('pointerenter', () => { say.textContent = `${trace.labels[n]}: ${trace.text[n]}`; });
      root.append(g);
    };
    const below = (n, x, y, w) => {
      put(n, x, y, w);
      let left = x;
      for (const c of children[n]) {
        const part = w * trace.values[c] / trace.values[n];
        if (part >= 0.7) below(c, left, y + row, part);
        left += part;
      }
    };
    // The way back, from the top down.
    const above = [];
    for (let p = trace.parents[chosen]; p !== ''; p = trace.parents[at.get(p)]) above.unshift(at.get(p));
    above.forEach((n, k) => put(n, 0, k * row, width));
    below(chosen, 0, above.length * row, width);
    root.setAttribute('viewBox', `0 0 ${width} ${depth}`);
    box.append(root, say);
  };

  const draw = (plotly, box) => {
    if (plotly.data.length && plotly.data[0].type === 'icicle') {
      drawFlame(plotly.data[0], box, 0);
      return;
    }
    box.replaceChildren();
    const width = Math.max(box.clientWidth, 260);
    const height = Math.round(Math.min(300, Math.max(210, width * 0.55)));
    const { data: traces, layout } = plotly;
    const second = traces.some((t) => t.yaxis === 'y2');
    const area = { l: 52, r: second ? 52 : 12, t: 10, b: 40 };
    const [x0, x1, y0, y1] = [area.l, width - area.r, height - area.b, area.t];
    const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img' });
    root.append(svg('title', {}, layout.title.text));
    if (!traces.length || !traces.some((t) => t.x.length)) {
      root.append(svg('text', { x: width / 2, y: height / 2, 'text-anchor': 'middle' }, 'nothing was measured'));
      box.append(root);
      return;
    }
    const categories = isCategory(layout.xaxis, traces[0].x) ? traces[0].x : null;
    const stacked = layout.barmode === 'stack';
    const bars = traces.filter((t) => t.type === 'bar');
    const sums = (categories || (bars[0] ? bars[0].x : [])).map((_, n) => bars.reduce((s, t) => s + t.y[n], 0));
    const ys = (which) => traces.filter((t) => (t.yaxis || 'y') === which)
      .flatMap((t) => (t.type === 'bar' && stacked ? sums : t.y));
    const hasBars = bars.length > 0;
    const Y = scale(layout.yaxis, ys('y'), y0, y1, hasBars);
    const Y2 = second ? scale(layout.yaxis2, ys('y2'), y0, y1, true) : null;
    const X = categories
      ? { place: (_, n) => x0 + (n + 0.5) / categories.length * (x1 - x0), ticks: categories.map((c) => [c, c]) }
      : scale(layout.xaxis, traces.flatMap((t) => t.x), x0, x1, false);

    for (const [v, text] of Y.ticks) {
      const y = Y.place(v);
      root.append(svg('line', { class: 'grid', x1: x0, x2: x1, y1: y, y2: y }));
      root.append(svg('text', { x: x0 - 6, y: y + 4, 'text-anchor': 'end' }, text));
    }
    if (Y2) for (const [v, text] of Y2.ticks) root.append(svg('text', { x: x1 + 6, y: Y2.place(v) + 4 }, text));
    let free = -Infinity;
    X.ticks.forEach(([v, text], n) => {
      const x = X.place(v, n);
      const half = String(text).length * 3.3;
      if (x - half < free) return;
      free = x + half + 6;
      root.append(svg('text', { x, y: y0 + 16, 'text-anchor': 'middle' }, text));
    });
    const label = (axis) => (axis && axis.title ? axis.title.text : '');
    root.append(svg('text', { x: (x0 + x1) / 2, y: height - 6, 'text-anchor': 'middle' }, label(layout.xaxis)));
    const side = (text, x, turn) => root.append(svg('text', {
      transform: `translate(${x} ${(y0 + y1) / 2}) rotate(${turn})`, 'text-anchor': 'middle' }, text));
    side(label(layout.yaxis), 11, -90);
    if (Y2) side(label(layout.yaxis2), width - 5, -90);

    const count = categories ? categories.length : (bars[0] ? bars[0].x.length : 1);
    const slot = (x1 - x0) / Math.max(count, 1);
    const base = Array(count).fill(0);
    const colour = (n) => `var(--c${n % 6})`;
    traces.forEach((t, k) => {
      const S = t.yaxis === 'y2' ? Y2 : Y;
      if (t.type === 'bar') {
        const share = stacked || bars.length === 1 ? 1 : bars.length;
        const w = Math.max(1, Math.min(slot * 0.82, 90) / share);
        t.y.forEach((v, n) => {
          const low = stacked ? base[n] : 0;
          if (stacked) base[n] += v;
          const [top, bottom] = [S.place(low + v), S.place(low)];
          const x = X.place(t.x[n], n) - w * share / 2 + (share > 1 ? k * w : 0);
          root.append(svg('rect', { x, y: top, width: w, height: Math.max(0, bottom - top), fill: colour(k) }));
        });
        return;
      }
      const points = t.x.map((v, n) => [X.place(v, n), S.place(t.y[n])]).filter((p) => p.every(Number.isFinite));
      if (t.mode.includes('lines')) {
        root.append(svg('polyline', {
          points: points.map((p) => p.map((v) => v.toFixed(1)).join(',')).join(' '),
          fill: 'none', stroke: colour(k), 'stroke-width': 1.8, 'stroke-linejoin': 'round',
          'stroke-dasharray': t.yaxis === 'y2' ? '5 3' : t.dash || 'none',
        }));
      }
      if (t.mode.includes('markers') || points.length === 1) {
        for (const [x, y] of points) root.append(svg('circle', { cx: x, cy: y, r: 3.2, fill: colour(k) }));
      }
    });

    // A legend that shows the values under the pointer.
    const values = traces.map(() => html('b', {}));
    const at = html('span', { class: 'faint' });
    const legend = html('div', { class: 'legend' }, ...traces.map((t, k) =>
      html('span', {}, html('i', { style: `background:${colour(k)}` }), `${t.name} `, values[k])), at);
    const cursor = svg('line', { class: 'cursor', y1: y0, y2: y1, visibility: 'hidden' });
    root.append(cursor);
    root.addEventListener('pointermove', (event) => {
      const frame = root.getBoundingClientRect();
      const x = (event.clientX - frame.left) * width / frame.width;
      let near = null;
      traces.forEach((t, k) => {
        let best = -1, distance = Infinity;
        t.x.forEach((v, n) => {
          const d = Math.abs(X.place(v, n) - x);
          if (d < distance) { distance = d; best = n; }
        });
        values[k].textContent = best < 0 ? '' : short(t.y[best]);
        if (best >= 0 && (!near || distance < near.distance)) near = { distance, v: t.x[best], n: best };
      });
      if (!near) return;
      const place = X.place(near.v, near.n);
      cursor.setAttribute('x1', place);
      cursor.setAttribute('x2', place);
      cursor.setAttribute('visibility', 'visible');
      const tick = X.ticks.find(([v]) => v === near.v);
      at.textContent = `at ${tick ? tick[1] : short(near.v)}`;
    });
    root.addEventListener('pointerleave', () => {
      cursor.setAttribute('visibility', 'hidden');
      values.forEach((v) => { v.textContent = ''; });
      at.textContent = '';
    });
    box.append(root, legend);
  };

  const boxes = [];
  const figures = (list) => {
    const all = html('div', { class: 'figures' });
    for (const f of list) {
      const box = html('div', { class: 'plot' });
      boxes.push([f.plotly, box]);
      const wide = f.plotly.data.some((t) => t.type === 'icicle') ? 'wide' : '';
      all.append(html('figure', { id: `${f.series || 'run'}-${f.name}`, class: wide },
        html('h3', {}, f.plotly.layout.title.text), html('figcaption', {}, f.says), box));
    }
    return all;
  };
  const table = (head, rows) => html('div', { class: 'scroll' }, html('table', {},
    html('thead', {}, html('tr', {}, ...head.map((h) => html('th', {}, h)))),
    html('tbody', {}, ...rows.map((r) => html('tr', { class: r.kind || '' }, ...(r.cells || r).map((c) => html('td', {}, c)))))));
  const value = (name, v) => (name.endsWith('_us') ? span(v) : short(v));

  const showRun = (run) => {
    const t = run.target;
    const verdict = run.valid ? (run.findings.length ? 'valid, with warnings' : 'valid') : 'INVALID';
    const kind = run.valid ? (run.findings.length ? 'warn' : 'good') : 'bad';
    page.append(
      html('h1', {}, `${t.model}${run.label ? ` at ${run.label}` : ''} `, html('span', { class: `badge ${kind}`, id: 'verdict' }, verdict)),
      html('p', { class: 'faint' }, `${t.address}, engine ${t.engine || 'unknown'}, workers on cores ${
        t.worker_cores.map((c) => (c === null ? 'unpinned' : c)).join(', ') || 'unknown'}, generator on core ${
        t.generator_core === null ? 'any' : t.generator_core}; ${run.machine.name}, Linux ${run.machine.kernel}`));
    if (run.findings.length) {
      page.append(html('ul', { class: 'findings' }, ...run.findings.map((f) =>
        html('li', { class: f.severity === 'invalid' ? 'bad' : 'warn' }, f.text))));
    }
    if (run.sweep) {
      page.append(html('h2', {}, 'Contention'), html('p', {}, `${run.sweep.verdict} (slope ${run.sweep.slope.toFixed(2)})`),
        figures(data.figures.filter((f) => f.series === '')));
    }
    for (const s of run.series) {
      const l = s.load;
      const how = l.loop === 'open'
        ? `open loop, ${l.plan.profile}${['ramp', 'replay'].includes(l.plan.profile) ? '' : `, ${short(l.plan.rate_per_s)} requests/s for ${l.plan.span_s} s`}; latencies count from the planned send`
        : `closed loop, ${l.concurrency} in flight for ${l.span_s} s; latencies count from the actual send`;
      page.append(html('h2', {}, s.name), html('p', { class: 'faint' }, how));
      if (s.bound) page.append(html('p', { class: s.bound.held ? 'good' : 'bad' },
        `the bound of ${span(s.bound.p99_ns_max / 1e3)} at p99 is ${s.bound.held ? '' : 'not '}held`));
      page.append(table(['metric', 'median', 'least', 'largest', 'repeats'], Object.entries(s.summary).map(([name, m]) =>
        [name, value(name, m.median), value(name, m.min), value(name, m.max), m.repeats])));
      if (s.profile && s.profile.absent) page.append(html('p', { class: 'warn' }, `no flame graph: ${s.profile.absent.why}`));
      page.append(figures(data.figures.filter((f) => f.series === s.name)));
    }
  };
  const showComparison = (c) => {
    page.append(html('h1', {}, `${c.new} against ${c.base} `, html('span', {
      class: `badge ${c.headline.startsWith('worse') ? 'bad' : 'good'}`, id: 'verdict' }, c.headline)));
    if (c.notes.length || c.broken.length) {
      page.append(html('ul', { class: 'findings' }, ...c.broken.map((n) => html('li', { class: 'bad' }, n)),
        ...c.notes.map((n) => html('li', { class: 'warn' }, n))));
    }
    const kinds = { worse: 'bad', better: 'good' };
    for (const s of new Set(c.changes.map((x) => x.series))) {
      page.append(html('h2', {}, s), table(['metric', 'base', 'new', 'change', 'p', 'verdict'],
        c.changes.filter((x) => x.series === s).map((x) => ({
          kind: kinds[x.verdict] || '',
          cells: [x.metric, value(x.metric, x.base.median), value(x.metric, x.new.median),
            `${x.percent >= 0 ? '+' : ''}${x.percent.toFixed(1)} %`, x.p_value.toFixed(3), x.verdict.replaceAll('_', ' ')],
        }))));
      const moved = c.functions.filter((x) => x.series === s && x.more_than_noise);
      const cost = (us) => (us === null ? 'unknown' : span(us));
      if (moved.length) page.append(html('h3', {}, 'Functions by how far their share of CPU time moved'),
        table(['function', 'base', 'new', 'points', 'base, each request', 'new'], moved.map((x) => ({
          kind: x.points > 0 ? 'bad' : 'good',
          cells: [x.function, `${x.base_percent.toFixed(1)} %`, `${x.new_percent.toFixed(1)} %`,
            `${x.points > 0 ? '+' : ''}${x.points.toFixed(1)}`, cost(x.base_us_per_request), cost(x.new_us_per_request)],
        }))));
      page.append(figures(data.figures.filter((f) => f.series === s)));
    }
  };

  if (data.run) showRun(data.run);
  if (data.comparison) showComparison(data.comparison);
  if (data.history) {
    page.append(html('h1', {}, data.history.title), figures(data.figures));
  }
  const drawAll = () => boxes.forEach(([plotly, box]) => draw(plotly, box));
  drawAll();
  let width = page.clientWidth;
  addEventListener('resize', () => {
    if (page.clientWidth !== width) { width = page.clientWidth; drawAll(); }
  });
  document.documentElement.dataset.drawn = String(boxes.length);
})();
