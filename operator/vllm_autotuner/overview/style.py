"""The style sheet of every page. Apart from the pages, because it is CSS.

Light and dark follow the reader's system; on paper it is dark on white and nothing is hidden.
"""

from typing import Final

from vllm_autotuner.overview.class_looks import LOOKS

__all__ = ["STYLE"]

_BASE: Final = """
:root { color-scheme: light dark; --fg: #1c2126; --soft: #5b6570; --bg: #ffffff; --card: #f6f7f9; --line: #d8dde3;
  --link: #0b57a4; }
@media (prefers-color-scheme: dark) {
  :root { --fg: #e6e9ed; --soft: #9aa5b1; --bg: #15181c; --card: #1d2126; --line: #343b44; --link: #8ec2ff; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 3rem; max-width: 76rem; background: var(--bg); color: var(--fg);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.55rem; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 0 0 .5rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .35rem; }
section { border: 1px solid var(--line); border-radius: .6rem; padding: 1.1rem 1.3rem; margin: 1.4rem 0; }
dl { display: grid; grid-template-columns: fit-content(40%) 1fr; gap: .15rem 1.2rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; }
small, footer { color: var(--soft); font-size: .86rem; }
.verdict { font-size: 1.1rem; margin: .2rem 0 .6rem; }
.badge { display: inline-block; border-left: .75rem solid var(--class, var(--line)); background: var(--card);
  padding: 0 .55rem 0 .5rem; border-radius: .25rem; font-weight: 600; white-space: nowrap;
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
ul { margin: .2rem 0; padding-left: 1.3rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; margin-top: .6rem; overflow-wrap: break-word; }
td:first-child { min-width: 9rem; }
td:first-child, td:last-child, .badge:not([class*=" is-"]) { overflow-wrap: anywhere; white-space: normal; }
th { text-align: left; color: var(--soft); font-weight: 600; }
th, td { padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: .5rem 0; color: var(--fg); }
figure { overflow-x: auto; } figure svg { width: 100%; font-family: inherit; }
figure svg[viewBox] { min-width: 40rem; height: auto; }
.timeline svg { display: block; } .timeline text { fill: var(--soft); font-size: .86rem; }
.timeline line { stroke: var(--mark, var(--soft)); stroke-width: 14; stroke-linecap: round; }
.timeline .axis { stroke: var(--line); stroke-width: 1; } .timeline a:focus-visible line { stroke: var(--link); }
.lane-kept { --mark: #009e73; } .lane-rolled-back { --mark: #d55e00; } .lane-rollback-failed { --mark: #882255; }
.lane-under-way { --mark: #0072b2; } .timeline figcaption { color: var(--soft); font-size: .86rem; }
details:target > summary { outline: 2px solid var(--link); outline-offset: 2px; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; font-size: .92rem; }
caption { text-align: left; color: var(--soft); font-size: .86rem; padding-bottom: .3rem; }
a { color: var(--link); } a:focus-visible, summary:focus-visible, input:focus-visible, button:focus-visible,
figure:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
nav, form { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center; margin: .8rem 0; }
input, button { font: inherit; padding: .3rem .6rem; border: 1px solid var(--soft); border-radius: .3rem;
  background: var(--bg); color: var(--fg); max-width: 100%; }
details { margin-top: 1.2rem; } summary { cursor: pointer; color: var(--soft); }
@media (max-width: 40rem) {
  body { padding: 1rem .8rem 2rem; } section { padding: .8rem .9rem; } h1 { font-size: 1.3rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  .stacks thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .stacks, .stacks tbody, .stacks tr, .stacks caption { display: block; }
  .stacks tr { border-bottom: 2px solid var(--line); padding: .5rem 0; }
  .stacks td { display: inline-block; max-width: 100%; border: 0; padding: .1rem 1rem .1rem 0; white-space: normal; }
  .stacks td:first-child, .stacks td:last-child { display: block; }
  .stacks td:empty { display: none; }
  .stacks td:not(:first-child)::before { content: attr(data-label) " "; color: var(--soft); font-size: .86rem; }
}
@media print {
  :root { --fg: #000; --soft: #444; --bg: #fff; --card: #f3f3f3; --line: #bbb; --link: #000; }
  body { max-width: none; padding: 0; font-size: 11pt; }
  section { break-inside: auto; } figure, table { break-inside: avoid; }
}
"""

STYLE: Final = _BASE + "".join(f".is-{named.value} {{ --class: {look.colour}; }}\n" for named, look in LOOKS.items())
"""A class has its colour by name: a page needs no style of its own in an element, which its policy forbids."""
