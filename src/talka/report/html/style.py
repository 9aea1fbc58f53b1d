"""How the HTML report looks: light and dark, on phones, screens and paper.

Lines differ in their dashes as well as in colour, and the colours are told apart by most colour-blind people.
"""

from typing import Final

HATCH: Final = (
    '<svg class="nowhere" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6"'
    ' patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="stripe" width="2" height="6"/></pattern>'
    "</defs></svg>"
)
"""What marks lost shards in the charts; once on a page."""

STYLE: Final = """
:root{color-scheme:light dark;--back:#fff;--card:#f6f7f9;--text:#1a1d21;--pale:#5a636e;--rule:#d9dee4;--grid:#e3e7ec;
--main:#0072b2;--second:#b35900;--third:#00785a;--fourth:#a0417d;--fifth:#6b6100;--bad:#b3261e;--good:#00694f;--unsure:#7a5200;--plan:#5a636e;
--bad-back:#b3261e;--good-back:#00694f;--unsure-back:#8a5a00}
@media (prefers-color-scheme:dark){:root{--back:#14171b;--card:#1d2127;--text:#e8ebee;--pale:#a3acb7;--rule:#363d46;
--grid:#2a3038;--main:#5bb8f0;--second:#f0a03c;--third:#4fd1a5;--fourth:#e58cc3;--fifth:#d6cb52;--bad:#ff8a7a;--good:#4fd1a5;--unsure:#f2c14e;--plan:#a3acb7;
--bad-back:#8f1f18;--good-back:#00573f;--unsure-back:#6e4800}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.5 system-ui,-apple-system,
"Segoe UI",Roboto,sans-serif;
overflow-wrap:anywhere;-webkit-text-size-adjust:100%}
main{max-width:1240px;margin:0 auto;padding:16px}
section{margin-top:28px}
h1{font-size:19px;margin:4px 0 8px;font-weight:600}
h2{font-size:17px;margin:0 0 8px;padding-bottom:4px;border-bottom:1px solid var(--rule)}
p{margin:6px 0}
ul{margin:6px 0;padding-left:20px}
ul.plain,ul.samples,.banner ul{list-style:none;padding:0}
ul.plain{color:var(--pale)}
ul.samples li{font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;padding:2px 0 2px 14px}
.banner{color:#fff;border-radius:10px;padding:16px 20px;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.good .banner{background:var(--good-back)}.bad .banner{background:var(--bad-back)}
.unsure .banner{background:var(--unsure-back)}
.verdict{font-size:26px;font-weight:700;line-height:1.2;margin:0}
.verdict .code{font-size:15px;font-weight:400;white-space:nowrap;margin-left:8px}
.verdict .sign{display:inline-block;width:1.5em;height:1.5em;line-height:1.42em;margin-right:4px;text-align:center;
border:2px solid;border-radius:50%;font-size:.8em}
.banner li{font-weight:600}.banner .facts{color:#fff;font-size:14px;margin-bottom:0}
.facts,.note,.empty,small{color:var(--pale)}
.facts span{white-space:nowrap}
.note{font-size:14px}
.bad-text{color:var(--bad);font-weight:600}.good-text{color:var(--good);font-weight:600}
.unsure-text{color:var(--unsure);font-weight:600}
ul.warnings{list-style:none;padding:0}
ul.warnings li{border-left:4px solid var(--unsure);background:var(--card);padding:6px 12px;margin:4px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(112px,1fr));gap:8px;margin:16px 0 0}
.tile{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:8px 12px}
.tile dt{color:var(--pale);font-size:13px}.tile dd{margin:0;font-size:22px;font-weight:650;line-height:1.25}
.tile dd.note{font-size:12px;font-weight:400}
.tile.bad-text dd:not(.note){color:var(--bad)}.tile.unsure dd:not(.note){color:var(--unsure)}
.charts+.charts{margin-top:12px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:12px}
.chart{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 12px;min-width:0}
.chart figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 16px;min-height:1.5em}
.chart small{font-weight:400;margin-left:4px}
.legend{display:flex;flex-wrap:wrap;gap:0 14px;list-style:none;margin:0;padding:0;font-size:13px}
.swatch{width:26px;height:10px;margin-right:5px}
.plot{padding:12px 18px 26px 58px}
.frame{display:block;width:100%;height:190px;overflow:visible}
.lines{overflow:visible}
.x-unit{margin:-4px 0 0;text-align:center;font-size:12px;color:var(--pale)}
.empty{height:120px;display:flex;align-items:center;justify-content:center;margin:0}
.grid line{stroke:var(--grid);stroke-width:1}
.grid .tick{stroke-dasharray:1 4;stroke:var(--rule)}
text{font-size:12px;fill:var(--pale);font-variant-numeric:tabular-nums}
text.y,text.left{text-anchor:end}text.x{text-anchor:middle}
.line{fill:none;stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round;stroke-linecap:round}
.line.main{stroke:var(--main)}.line.second{stroke:var(--second);stroke-dasharray:6 3;stroke-linecap:butt}
.line.third{stroke:var(--third);stroke-dasharray:10 3 2 3;stroke-linecap:butt}
.line.fourth{stroke:var(--fourth);stroke-dasharray:3 3;stroke-linecap:butt}
.line.fifth{stroke:var(--fifth);stroke-dasharray:12 4;stroke-linecap:butt}
.line.bad{stroke:var(--bad);stroke-dasharray:2 3;stroke-width:2.5}
.line.plan{stroke:var(--plan);stroke-width:7;stroke-opacity:.4}
.area,.spread{stroke:none;fill-opacity:.14}.spread{fill-opacity:.25}.solid{fill-opacity:.7}
.area.main,.spread.main{fill:var(--main)}.area.second,.spread.second{fill:var(--second)}
.spread.plan{fill:var(--plan)}.area.bad,.spread.bad{fill:var(--bad)}.area.bad{fill-opacity:.4}
.band{fill:url(#hatch);stroke:var(--unsure);stroke-width:1}
.stripe{fill:var(--unsure);fill-opacity:.55}
.mark line{stroke:var(--pale);stroke-width:1;stroke-dasharray:3 3}
.pointer{stroke:var(--pale);stroke-width:1;pointer-events:none}
.tip{position:fixed;z-index:9;pointer-events:none;background:var(--back);border:1px solid var(--rule);border-radius:6px;
padding:4px 8px;font-size:13px;line-height:1.4;font-variant-numeric:tabular-nums;white-space:nowrap;
box-shadow:0 2px 8px #0004}
.tip div:first-child{color:var(--pale)}
.dot{display:inline-block;width:8px;height:8px;border-radius:50%;margin-right:6px;background:var(--plan)}
.dot.main{background:var(--main)}.dot.second{background:var(--second)}.dot.third{background:var(--third)}
.dot.fourth{background:var(--fourth)}.dot.fifth{background:var(--fifth)}.dot.bad{background:var(--bad)}
.reach{stroke-width:2}
.run-0,.run-5{stroke:var(--main);fill:var(--main)}.run-1,.run-6{stroke:var(--second);fill:var(--second)}
.run-2,.run-7{stroke:var(--third);fill:var(--third)}.run-3,.run-8{stroke:var(--fourth);fill:var(--fourth)}
.run-4,.run-9{stroke:var(--fifth);fill:var(--fifth)}
.interval{display:block;width:150px;height:20px}.interval .same{fill:var(--rule);fill-opacity:.6}
.interval .none{stroke:var(--pale);stroke-width:1}
svg .plain-text{stroke:var(--pale);fill:var(--pale)}svg .bad-text{stroke:var(--bad);fill:var(--bad)}
svg .good-text{stroke:var(--good);fill:var(--good)}svg .unsure-text{stroke:var(--unsure);fill:var(--unsure)}
.verdict.small{font-size:20px;margin:0 0 6px}
h3{font-size:15px;margin:12px 0 4px}footer{margin-top:28px}
.small-charts .frame{height:130px}
.nowhere{position:absolute;width:0;height:0}
.scroll{overflow-x:auto}
table{border-collapse:collapse;overflow-wrap:normal;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
table.narrow{width:auto;min-width:min(100%,420px)}
th,td{padding:5px 10px;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
thead th{color:var(--pale);font-weight:500;white-space:nowrap;font-size:13px}
tbody th{font-weight:600}
th small{display:block;font-weight:400}
.number{text-align:right;white-space:nowrap}
thead .number{text-align:right}
.name,.text,tbody th{min-width:110px;overflow-wrap:anywhere}.text{min-width:200px;white-space:pre-wrap}
.kind{white-space:nowrap;color:var(--pale)}
.spark{display:block;width:130px;height:38px;border-bottom:1px solid var(--rule)}
meter{width:60px;height:10px;vertical-align:middle}
details{margin:4px 0}summary{cursor:pointer;padding:2px 0}
@media (max-width:600px){main{padding:8px}.banner{padding:14px;border-radius:8px}.verdict{font-size:22px}
.verdict .code{display:block;margin:4px 0 0}.tiles{grid-template-columns:repeat(auto-fit,minmax(104px,1fr));gap:6px}
.tile{padding:6px 9px}.tile dd{font-size:19px}.chart{padding:8px}.plot{padding:10px 16px 24px 52px}
.frame{height:170px}th,td{padding:5px 7px}}
@media print{:root{color-scheme:light;--back:#fff;--card:#fff;--text:#000;--pale:#444;--rule:#bbb;--grid:#ddd;
--main:#0072b2;--second:#b35900;--third:#00785a;--fourth:#a0417d;--fifth:#6b6100;--bad:#b3261e;--good:#00694f;--unsure:#7a5200;--plan:#444;
--bad-back:#b3261e;--good-back:#00694f;--unsure-back:#8a5a00}
body{font-size:12px}.note,.banner .facts,.legend,thead th{font-size:11px}.tile dd:not(.note){font-size:17px}
.tiles{grid-template-columns:repeat(8,1fr)}main{max-width:none;padding:0}.charts{grid-template-columns:1fr 1fr}
.chart,.tile,tr,.banner,li{break-inside:avoid}h2{break-after:avoid}.scroll{overflow:visible}
.frame{height:140px}table{font-size:10px}th,td{padding:2px 5px}.spark{width:70px;height:22px}
.chart,.spark,.tile{print-color-adjust:exact;-webkit-print-color-adjust:exact}
details::details-content{content-visibility:visible;height:auto}}
"""
