"""A privacy report as a document in one file of HTML, and as a table for notebooks.

The document loads nothing and runs nothing. It prints on two pages of A4 if few mechanisms ran.
"""

import html
import math
from string import Template
from typing import TYPE_CHECKING

from keras_adaclip.accounting import report_text
from keras_adaclip.accounting.epsilon import rounded_up
from keras_adaclip.accounting.report_words import best_guess, percent

if TYPE_CHECKING:
    from keras_adaclip.accounting.report import PrivacyReport

_DOCUMENT = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Privacy report: $model</title>
<style>
:root { color-scheme: light dark; --ink: #1d2433; --soft: #5a6478; --line: #d9dee8;
  --page: #fff; --box: #f3f6fb; --mark: #2457c5; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e4e8f1; --soft: #a3adc2;
  --line: #39424f; --page: #14181f; --box: #1e242e; --mark: #8ab0ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 3rem; max-width: 60rem; color: var(--ink);
  background: var(--page); font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "Liberation Sans",
  sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0; font-size: 1.8rem; line-height: 1.2; }
h2 { margin: 1.8em 0 .4em; font-size: 1.15rem; break-after: avoid; }
p { margin: .4em 0; }
.soft { color: var(--soft); }
.box { margin: 1.2rem 0; padding: 1rem 1.25rem; background: var(--box); border: 1px solid
  var(--line); border-left: 5px solid var(--mark); border-radius: 4px; }
.box strong { font-size: 1.35rem; }
.scale { position: relative; height: .7rem; margin: .9rem 0 .3rem; border-radius: .35rem;
  background: var(--line); overflow: hidden; }
.scale i { position: absolute; inset: 0 auto 0 0; width: $guess_width%;
  background: var(--mark); }
.ends { display: flex; justify-content: space-between; font-size: .85rem; color: var(--soft); }
ul { margin: 0; padding-left: 1.2em; }
li { margin: .3em 0; }
table { width: 100%; border-collapse: collapse; font-size: .93rem; }
th, td { padding: .4em .75em .4em 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { width: 13.5rem; color: var(--soft); font-weight: 500; overflow-wrap: normal; }
tr { break-inside: avoid; }
@media screen and (max-width: 36rem) {
  th, td { display: block; width: auto; padding: .35em 0 0; border: 0; }
  td { padding: 0 0 .35em; border-bottom: 1px solid var(--line); }
}
@page { size: A4; margin: 13mm 16mm; }
@media print {
  body { max-width: none; padding: 0; font-size: 8.8pt; line-height: 1.36;
    -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  h1 { font-size: 17pt; } h2 { margin-top: 1.1em; font-size: 10.5pt; }
  .box { margin: .7em 0; padding: .6em 1em; } .box strong { font-size: 13pt; }
  table { font-size: 8.2pt; } th, td { padding: .22em .75em .22em 0; } th { width: 42mm; }
  li { margin: .18em 0; }
}
</style>
</head>
<body>
<h1>Privacy report</h1>
<p class="soft">Model $model, $date</p>
<div class="box">
<strong>$verdict</strong>
<div class="scale"><i></i></div>
<div class="ends"><span>50%: a blind guess</span><span>100%: certainty</span></div>
<p>An attacker's best guess of whether any one $unit was in the training data is right with
probability at most <b>$guess</b>.</p>
</div>
$lists
<h2>Numbers</h2>
$numbers
<h2>What ran</h2>
$facts
<h2>What this report is about</h2>
$identity
</body>
</html>
""")


def as_document(report: "PrivacyReport") -> str:
    """The report as a document."""
    lists = [
        f"<h2>{html.escape(title)}</h2>\n<ul>\n"
        + "\n".join(f"<li>{html.escape(each)}</li>" for each in texts)
        + "\n</ul>"
        for title, texts in report_text.titled_lists(report).items()
    ]
    unit = html.escape(report.unit)
    epsilon = "is infinite" if math.isinf(report.epsilon) else f"≤ {rounded_up(report.epsilon)}"
    guess = best_guess(report.epsilon, report.delta) if report.mechanisms else 0.5
    return _DOCUMENT.substitute(
        model=html.escape(report.model_name),
        date=html.escape(report.date.replace("T", " ").replace("+00:00", " UTC")),
        verdict=f"Epsilon {epsilon} at delta = {report.delta:g}, for one {unit}",
        guess=percent(guess),
        guess_width=f"{200 * (guess - 0.5):.1f}",
        unit=unit,
        lists="\n".join(lists),
        numbers=as_table(report_text.numbers(report)),
        facts=as_table(report_text.facts(report)),
        identity=as_table(
            [*report_text.identity(report), ("made with", report_text.software(report))]
        ),
    )


def as_table(rows: report_text.Rows) -> str:
    """Names and values as a table.

    Args:
        rows: The names and values, not escaped.
    """
    cells = [
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in rows
    ]
    return "\n".join(["<table>", *cells, "</table>"])
