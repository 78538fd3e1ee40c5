"""The look of a page: by day and by night, on a telephone, and on paper."""

from __future__ import annotations

# The colours of Okabe and Ito, darker by day and lighter by night if the contrast needs it.
STYLE = """
:root{--paper:#fff;--ink:#1a1c20;--soft:#5b616b;--line:#d9dce1;--grid:#eceef1;--card:#f6f7f9;
--c0:#0072b2;--c1:#c04a00;--c2:#00805d;--c3:#b0508a;--c4:#2a93d1;--c5:#a86f00;--c6:#444;--c7:#7a5cc4;
--good:#00805d;--bad:#c04a00;--limit:#8a1c4a}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14161a;--ink:#e8eaee;--soft:#a2a9b4;--line:#3a3f48;
--grid:#262a31;--card:#1d2026;--c0:#56b4e9;--c1:#f08a4b;--c2:#3cc79a;--c3:#e08cc0;--c4:#9bd0f2;--c5:#e6b94a;
--c6:#bbb;--c7:#b39bf0;--good:#3cc79a;--bad:#f08a4b;--limit:#f47fa8}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem clamp(.8rem,3vw,2rem) 3rem;max-width:78rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif}
h1{font-size:1.55rem;line-height:1.2;margin:0 0 .2rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.2rem 0 .5rem;padding-top:.6rem;border-top:1px solid var(--line)}
p{margin:.3rem 0 .6rem;max-width:72ch;overflow-wrap:anywhere}
.sub{margin:.1rem 0}.sub,.note,figcaption span,.tile small{color:var(--soft)}
.mark{background:#f2c200;color:#111;padding:.05rem .45rem;border-radius:.2rem;font-weight:600}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.8rem 0;font-size:.9rem}
a{color:var(--c0)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.6rem;margin:1rem 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.55rem .75rem}
.tile b{display:block;font-size:1.45rem;line-height:1.25;font-variant-numeric:tabular-nums}
.tile span{font-size:.85rem}
.tile small{display:block;font-size:.8rem;line-height:1.35}
.tile b{line-height:1.25}.tile b span{white-space:nowrap}
.ok{color:var(--good)}.miss{color:var(--bad)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr));gap:1rem 1.6rem;align-items:start}
figure{margin:0;min-width:0;max-width:38rem;break-inside:avoid}
figure.wide{max-width:none}
figcaption{font-size:.92rem;line-height:1.35}
figcaption span{font-size:.85rem}
svg{display:block;width:100%;height:auto;font:11px system-ui,"Segoe UI",Roboto,Arial,"DejaVu Sans",sans-serif}
figure>svg text{fill:var(--soft)}
figure>svg .label{fill:var(--ink)}
.axis{stroke:var(--line);fill:none}.gridline{stroke:var(--grid);fill:none}
.drawn{width:100%;touch-action:pan-y;cursor:crosshair}.drawn svg{overflow:visible}
button{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer;text-align:inherit}
.legend button[aria-pressed=false]{opacity:.4;text-decoration:line-through}
button.whole{margin-left:.6em;color:var(--c0);text-decoration:underline;font-size:.85rem}
#tip{position:fixed;z-index:9;pointer-events:none;max-width:20rem;background:var(--paper);border:1px solid var(--line);
border-radius:.3rem;padding:.3rem .6rem;font-size:.82rem;box-shadow:0 2px 10px #0003}
#tip table{margin:0;font-size:inherit}#tip th{font-weight:400;color:var(--soft)}
#tip td,#tip th{border:0;padding:0 .8rem 0 0}
#tip p{margin:0}h3{font-size:1rem;margin:1.2rem 0 .2rem}
.limit{stroke:var(--limit);stroke-width:1.4;stroke-dasharray:5 3;fill:none}
figure>svg text.limit{fill:var(--limit);stroke:none}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.dots{fill:none;stroke-width:3.4;stroke-linecap:round;stroke-opacity:.55}
.marker{stroke-width:1.4;vector-effect:non-scaling-stroke}.range{stroke-width:1.2}.whole{stroke-dasharray:none}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1);stroke-dasharray:9 4}.s2{stroke:var(--c2);stroke-dasharray:3 4}
.s3{stroke:var(--c3);stroke-dasharray:9 3 2 3}.s4{stroke:var(--c4)}.s5{stroke:var(--c5);stroke-dasharray:9 4}
.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}
.kept{stroke:var(--c0)}.missed{stroke:var(--c1);stroke-opacity:.9}
.f0{background:var(--c0)}.f1{background:var(--c1)}.f2{background:var(--c2)}.f3{background:var(--c3)}
.f4{background:var(--c4)}.f5{background:var(--c5)}.f6{background:var(--c6)}.f7{background:var(--c7)}
.bar{display:grid;grid-template-columns:minmax(6rem,11rem) 1fr;gap:.2rem .7rem;align-items:center;margin:.35rem 0;
font-size:.86rem;line-height:1.2}
.bar>span{text-align:right;overflow-wrap:anywhere}
.bar>div{display:flex;height:1.5rem;gap:1px}
.bar i{display:block;height:100%;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.ranked{grid-template-columns:1fr}.ranked>span{text-align:left}.bar .rank{position:relative}
.bar .none{background:var(--line)}
.rank u{position:absolute;top:25%;height:50%;border:solid var(--ink);border-width:0 2px;
background:linear-gradient(var(--ink),var(--ink)) center/100% 2px no-repeat}
.legend{display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:.15rem 0;padding:0;list-style:none;font-size:.82rem}
.legend i{display:inline-block;width:1.3em;height:0;margin-right:.35em;vertical-align:middle;border-top:3px solid}
.legend i.s0,.legend i.kept{color:var(--c0)}.legend i.s1{color:var(--c1);border-top-style:dashed}
.legend i.kept,.legend i.missed{width:.6em;height:.6em;border:0;border-radius:50%;background:currentcolor}
.legend i.missed{color:var(--c1)}
.legend i.s2{color:var(--c2);border-top-style:dotted}.legend i.s3{color:var(--c3);border-top-style:dashed}
.legend i.s4{color:var(--c4)}.legend i.s5{color:var(--c5);border-top-style:dashed}.legend i.s6{color:var(--c6)}
.legend i.s7{color:var(--c7)}
.legend i[class*=" m"]{position:relative;width:2em}
.legend i[class*=" m"]::after{position:absolute;top:-.85em;left:.55em;font-style:normal;line-height:1.5}
.m0::after{content:"●"}.m1::after{content:"■"}.m2::after{content:"▲"}.m3::after{content:"◆"}.m4::after{content:"▼"}
.m5::after{content:"⬟"}.m6::after{content:"⬢"}.m7::after{content:"★"}
.legend i.limit{color:var(--limit);border-top:2px dashed}
.legend i.ring{width:.7em;height:.7em;border:2px solid var(--soft);border-radius:50%}
.legend i[class^="f"]{width:.8em;height:.8em;border:0;border-radius:.15em}
.finding{border-left:4px solid var(--bad);background:var(--card);padding:.5rem .8rem;margin:.5rem 0;border-radius:.2rem}
.finding p{margin:.15rem 0}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.84rem;margin:.3rem 0;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft)}
th,td{padding:.18rem .6rem .18rem 0;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top}
th{font-weight:600;max-width:9.5rem;vertical-align:bottom}
td.n,th.n{text-align:right}td.n,td a{white-space:nowrap}
td[data-pad]::after{content:attr(data-pad);visibility:hidden}
td{max-width:34rem;overflow-wrap:break-word}
.map th{white-space:normal;vertical-align:bottom}
.map td{padding:.3rem .6rem}.map td.best{outline:2px solid var(--c1);outline-offset:-2px;font-weight:600}
summary{cursor:pointer;font-size:.82rem;color:var(--soft);padding:.15rem 0}
code{font:.86em ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
pre{background:var(--card);padding:.5rem .7rem;border-radius:.3rem;white-space:pre-wrap}
@media (max-width:32rem){.bar{grid-template-columns:1fr}.bar>span{text-align:left}
.scroll table{width:max-content}td{max-width:14rem}td:first-child{max-width:9rem}
th,th.n{max-width:8.5rem;white-space:normal;overflow-wrap:anywhere;vertical-align:bottom}}
@media print{body{max-width:none;padding:0;font-size:10pt}
nav,summary,#tip,.whole,.offer{display:none}.scroll{overflow:visible}
h2{break-after:avoid}.tile,.finding{break-inside:avoid}.grid{grid-template-columns:1fr 1fr}}
"""
