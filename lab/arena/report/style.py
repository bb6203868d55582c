"""The style sheet of the report: light and dark, wide and narrow; and one colour for each contender.

Owns looks only. The page carries it inside itself.
"""

from __future__ import annotations

COLOURS = (
    ("#2563eb", "#6ea8fe"),
    ("#d9480f", "#ff9f68"),
    ("#2b8a3e", "#69db7c"),
    ("#9c36b5", "#da8cf0"),
    ("#b08900", "#ffd43b"),
    ("#0b7285", "#4dd0e1"),
    ("#c2255c", "#faa2c1"),
    ("#5c5f66", "#adb5bd"),
    ("#6741d9", "#b197fc"),
    ("#5c940d", "#a9e34b"),
    ("#845c2b", "#d8a66a"),
    ("#1c1c1c", "#f1f3f5"),
)
"""For light and for dark, in the order of contenders."""

_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#5d6673;--rule:#dfe3e8;--wash:#f4f6f8;--good:#dff3e4;
--good-ink:#14532d;--bad:#fbe3e0;--bad-ink:#8a1c10;LIGHT}
@media(prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e9ed;--soft:#9aa4b0;--rule:#30363d;--wash:#1d2126;
--good:#143a22;--good-ink:#a7e8bd;--bad:#45201c;--bad-ink:#ffb4a8;DARK}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem 1rem 4rem;max-width:75rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.7rem;margin:.2rem 0}
h2{font-size:1.3rem;margin:2.8rem 0 .2rem;padding-top:1rem;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:1.6rem 0 .4rem}p{margin:.3rem 0 .7rem;max-width:60rem}a{color:inherit}
.soft{color:var(--soft)}
.verdict{background:var(--wash);border-left:3px solid var(--c0);padding:.5rem .8rem;border-radius:3px}
.wide{overflow-x:auto;-webkit-overflow-scrolling:touch;max-width:100%}
.bars+.wide,.wide+.wide{margin-top:.9rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.88rem}
th,td{padding:.32rem .6rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule);vertical-align:top}
th{font-weight:600;color:var(--soft);font-size:.8rem}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}
td.best{background:var(--good);color:var(--good-ink);font-weight:600}td.out,tr.out td{color:var(--soft)}
td.lost{background:var(--bad);color:var(--bad-ink)}td small{display:block;color:var(--soft);font-size:.76rem}
td.best small{color:inherit}
.mark{color:var(--c1);font-weight:700}
.swatch{display:inline-block;width:.7em;height:.7em;border-radius:2px;margin-right:.45em}
svg{display:block;width:100%;height:auto}svg text{fill:var(--ink);font-size:12px}svg .tick,svg .note{fill:var(--soft)}
svg .tick{font-size:9.5px}.bars{max-width:37rem}.faint .fill{opacity:.35}
.whisker{stroke:var(--ink);fill:none;stroke-width:1.2}
.grid{stroke:var(--rule);stroke-width:1}.line{fill:none;stroke-width:1.4;stroke-linejoin:round}
.line.asked{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 2}
.plots{display:grid;grid-template-columns:8.5rem repeat(var(--plots),minmax(9.5rem,1fr));gap:.2rem .6rem;
align-items:center;font-size:.85rem}.plots .head{font-weight:600;color:var(--soft);font-size:.8rem}
.plots .name{overflow-wrap:anywhere}
details{margin:.8rem 0}summary{cursor:pointer;color:var(--soft)}
ul.toc{columns:18rem;padding-left:1.1rem;margin:.4rem 0}
@media(max-width:700px){body{padding:.7rem .7rem 3rem;font-size:14px}h1{font-size:1.35rem}
.plots{grid-template-columns:repeat(2,1fr)}.plots .head{display:none}
.plots .name{grid-column:1/-1;margin-top:.7rem;font-weight:600}
.plots .caption{display:block}}
.caption{display:none;color:var(--soft);font-size:.76rem}
@media print{h2{break-before:page}}
"""


def style() -> str:
    """The style sheet."""
    light = "".join(f"--c{index}:{pair[0]};" for index, pair in enumerate(COLOURS))
    dark = "".join(f"--c{index}:{pair[1]};" for index, pair in enumerate(COLOURS))
    classes = "".join(
        f".k{index} .fill,.swatch.k{index}{{fill:var(--c{index});background:var(--c{index})}}"
        f".line.k{index}{{stroke:var(--c{index})}}"
        for index in range(len(COLOURS))
    )
    return _STYLE.replace("LIGHT", light).replace("DARK", dark) + classes
