"""The report's style sheet and its one script.  Nothing is loaded from elsewhere: the page works offline."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root {
  color-scheme: light dark;
  --bg: #f6f7f9; --card: #ffffff; --ink: #1b2330; --soft: #5b6675; --line: #dfe3e9; --code: #f1f3f6;
  --good: #0a7d55; --bad: #b3261e; --warn: #9a5b00; --base: #5b6675; --win: #0b62c4; --band: #0b62c41a;
  --good-bg: #e5f5ee; --bad-bg: #fbe9e7; --warn-bg: #fdf1dc; --win-bg: #e7f0fb;
  --p1: #4477aa; --p2: #b58900; --p3: #228833; --p4: #aa3377; --p5: #5b6675;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #11151b; --card: #1a2029; --ink: #e6eaf0; --soft: #a2acba; --line: #313a47; --code: #12171e;
    --good: #4fc596; --bad: #ff8a80; --warn: #f0b354; --base: #a2acba; --win: #6fb1ff; --band: #6fb1ff26;
    --good-bg: #143226; --bad-bg: #3a1d1b; --warn-bg: #38290f; --win-bg: #16293f;
    --p1: #77aadd; --p2: #ddcc66; --p3: #66bb77; --p4: #ee88bb; --p5: #a2acba;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px; }
header h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 2px; }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin-top: 18px; }
h2 { font-size: 1.08rem; margin: 0 0 10px; }
h3 { font-size: .95rem; margin: 14px 0 6px; }
p { margin: 0 0 8px; }
.soft { color: var(--soft); }
.banner { background: var(--warn-bg); color: var(--warn); border: 2px solid var(--warn); border-radius: 10px;
  padding: 12px 16px; margin-top: 18px; font-weight: 700; }
.answer { border-left: 6px solid var(--base); }
.answer.better { border-left-color: var(--good); }
.answer.infeasible { border-left-color: var(--bad); }
.answer.inconclusive { border-left-color: var(--warn); }
.answer .headline { font-size: 1.28rem; font-weight: 650; line-height: 1.35; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; margin-top: 14px; }
.tile { border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.tile .name { color: var(--soft); font-size: .84rem; }
.tile .value { font-size: 1.3rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile .was { color: var(--soft); font-size: .84rem; font-variant-numeric: tabular-nums; }
.badge { display: inline-block; border-radius: 99px; padding: 0 9px; font-size: .8rem; font-weight: 600;
  white-space: nowrap; }
.badge.feasible, .badge.kept { background: var(--good-bg); color: var(--good); }
.badge.infeasible { background: var(--warn-bg); color: var(--warn); }
.badge.failed, .badge.broken, .badge.refused { background: var(--bad-bg); color: var(--bad); }
.badge.void, .badge.unfinished { background: var(--code); color: var(--soft); }
.badge.winner { background: var(--win-bg); color: var(--win); }
.badge.baseline { background: var(--code); color: var(--base); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; }
tr.winner td { background: var(--win-bg); }
tbody tr:last-child td { border-bottom: 0; }
code, pre { font: .86rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
.code { position: relative; }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 8px; padding: 12px 84px 12px 14px; margin: 0;
  overflow-x: auto; }
button { font: inherit; font-size: .8rem; color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 2px 10px; cursor: pointer; position: absolute; top: 8px; right: 8px; }
button:hover { border-color: var(--win); color: var(--win); }
:focus-visible { outline: 2px solid var(--win); outline-offset: 2px; }
details { margin-top: 10px; }
summary { cursor: pointer; font-weight: 600; padding: 3px 0; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 18px; }
svg { display: block; width: 100%; height: auto; }
svg.wide { min-width: 560px; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--soft); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .strong { fill: var(--ink); font-weight: 600; }
.m-feasible { fill: var(--good); }
.m-infeasible { fill: none; stroke: var(--warn); stroke-width: 2; }
.m-failed { fill: none; stroke: var(--bad); stroke-width: 2.2; stroke-linecap: round; }
.m-void { fill: none; stroke: var(--soft); stroke-width: 1.6; }
.m-winner { fill: none; stroke: var(--win); stroke-width: 2.5; }
.m-baseline { fill: none; stroke: var(--base); stroke-width: 2.5; }
.f-winner { fill: var(--win); } .f-baseline { fill: var(--base); }
.line-best { fill: none; stroke: var(--win); stroke-width: 2; }
.line-winner { fill: none; stroke: var(--win); stroke-width: 2; }
.line-baseline { fill: none; stroke: var(--base); stroke-width: 2; stroke-dasharray: 6 4; }
.mark-winner { stroke: var(--win); stroke-width: 1.2; opacity: .8; }
.mark-baseline { stroke: var(--base); stroke-width: 1.2; stroke-dasharray: 6 4; opacity: .8; }
.limit { stroke: var(--bad); stroke-width: 1.6; stroke-dasharray: 7 4; }
.over { fill: var(--bad); opacity: .07; }
.band { fill: var(--band); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 6px 0 0; padding: 0; list-style: none;
  color: var(--soft); font-size: .84rem; }
.legend svg { display: inline-block; width: 18px; height: 14px; vertical-align: -2px; margin-right: 5px; }
.part1 { fill: var(--p1); } .part2 { fill: var(--p2); } .part3 { fill: var(--p3); } .part4 { fill: var(--p4); }
.part5 { fill: var(--p5); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
ul.notes { margin: 0; padding-left: 20px; }
footer { color: var(--soft); font-size: .84rem; margin-top: 18px; }
@media print { button { display: none; } body { background: none; } section { break-inside: avoid; } }
@media (max-width: 520px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 6px; } }
"""

SCRIPT = """
document.querySelectorAll('.code').forEach(function (box) {
  var button = document.createElement('button');
  button.type = 'button';
  button.textContent = 'Copy';
  button.addEventListener('click', function () {
    var pre = box.querySelector('pre');
    var done = function () {
      button.textContent = 'Copied';
      setTimeout(function () { button.textContent = 'Copy'; }, 1500);
    };
    var select = function () {
      var range = document.createRange();
      range.selectNodeContents(pre);
      var selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      if (document.execCommand('copy')) { done(); }
    };
    if (navigator.clipboard && window.isSecureContext) {
      navigator.clipboard.writeText(pre.textContent).then(done, select);
    } else { select(); }
  });
  box.appendChild(button);
});
"""
