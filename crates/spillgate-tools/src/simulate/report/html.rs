//! The report as one complete page: no script, no font, no network.

use std::fmt::{self, Write};

use super::{PolicyReport, Report, charts, percent};
use crate::plot::{Text, grouped};

/// Returns the page.
pub(in crate::simulate) fn page(report: &Report) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut page, report);
    page
}

fn write_page(page: &mut String, report: &Report) -> fmt::Result {
    writeln!(page, "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">")?;
    writeln!(page, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(page, "<meta name=\"color-scheme\" content=\"light dark\">")?;
    writeln!(
        page,
        "<title>spillgate simulate: {}</title>\n<style>{STYLE}</style>",
        Text(&report.input.source)
    )?;
    writeln!(page, "<main>\n<h1>Decisions of the policy</h1>")?;
    write!(page, "<pre>")?;
    for line in report.input.to_string().lines() {
        writeln!(page, "{}", Text(line))?;
    }
    writeln!(page, "</pre>")?;
    for condition in &report.conditions {
        let (class, verdict) = if condition.holds { ("bad", "fails") } else { ("good", "ok") };
        writeln!(page, "<p class=\"{class}\">{verdict}: {}</p>", Text(&condition.condition))?;
    }
    writeln!(page, "<figure>{}</figure>", charts::all(report))?;
    for policy in &report.policies {
        write_policy(page, policy)?;
    }
    writeln!(page, "</main>\n</html>")
}

fn write_policy(page: &mut String, policy: &PolicyReport) -> fmt::Result {
    writeln!(page, "<h2>{}</h2>", Text(&policy.policy))?;
    writeln!(
        page,
        "<p>Of {} requests {} are allowed and <b>{}</b> ({}) denied; {} matched no rule.</p>",
        grouped(policy.requests),
        grouped(policy.allowed),
        grouped(policy.denied),
        percent(policy.denied, policy.requests),
        grouped(policy.unmatched)
    )?;
    if let Some(difference) = &policy.against_first {
        writeln!(
            page,
            "<p>Only the first policy denies {}, only this one {}.</p>",
            grouped(difference.only_first_denies),
            grouped(difference.only_this_denies)
        )?;
    }
    let rules = policy.rules.iter().flat_map(|rule| {
        rule.limits.iter().map(move |limit| {
            let fill =
                |fill: Option<usize>| fill.map_or(String::new(), |percent| format!("{percent} %"));
            let name = format!("{} {}", limit.limit, limit.algorithm);
            [
                rule.rule.clone(),
                name,
                grouped(rule.matched),
                grouped(limit.denied),
                percent(limit.denied, rule.matched),
                grouped(rule.subjects_denied),
                fill(limit.fill_median),
                fill(limit.fill_p99),
                fill(limit.fill_most),
            ]
        })
    });
    let heads = [
        "rule",
        "limit",
        "matched",
        "denied",
        "of matched",
        "subjects denied",
        "fill: p50",
        "p99",
        "max",
    ];
    write_table(page, heads, 2, rules)?;
    let subjects = policy.denied_most.iter();
    let subjects = subjects.map(|one| [one.rule.clone(), one.subject.clone(), grouped(one.denied)]);
    write_table(page, ["rule", "denied most", "denied"], 2, subjects)?;
    let worst = policy.worst_times.iter();
    let worst = worst.map(|one| [one.from.clone(), grouped(one.requests), grouped(one.denied)]);
    write_table(page, ["most denials from", "requests", "denied"], 1, worst)
}

/// Writes a table, the first columns as text and the others as numbers; writes nothing without rows.
fn write_table<const N: usize>(
    page: &mut String,
    heads: [&str; N],
    words: usize,
    rows: impl Iterator<Item = [String; N]>,
) -> fmt::Result {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    let class = |column| if column < words { "" } else { " class=\"number\"" };
    write!(page, "<div class=\"wide\"><table>\n<tr>")?;
    for (column, head) in heads.iter().enumerate() {
        write!(page, "<th{}>{}</th>", class(column), Text(head))?;
    }
    writeln!(page, "</tr>")?;
    for row in rows {
        write!(page, "<tr>")?;
        for (column, cell) in row.iter().enumerate() {
            write!(page, "<td{}>{}</td>", class(column), Text(cell))?;
        }
        writeln!(page, "</tr>")?;
    }
    writeln!(page, "</table></div>")
}

const STYLE: &str = "
:root{color-scheme:light dark;--page:#f4f6f7;--card:#fff;--line:#d9dfe3;--text:#16222b;--quiet:#52626d;--good:#0f7a5a;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--page:#0f161b;--card:#172128;--line:#2b3942;--text:#e6edf1;--quiet:#9db0bb;--good:#55c99b;--bad:#ff8a80}}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-variant-numeric:tabular-nums}
main{max-width:960px;margin:0 auto;padding:24px 20px 48px}h1{font-size:22px;margin:0 0 12px}h2{font-size:17px;margin:32px 0 8px}
pre{white-space:pre-wrap;overflow-wrap:anywhere;color:var(--quiet);font:inherit;margin:0 0 16px}p{margin:0 0 10px}.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;overflow:hidden}figure svg{display:block;width:100%;height:auto}
.wide{overflow-x:auto;margin:0 0 16px;background:var(--card);border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%;font-size:14px}th,td{padding:6px 12px;text-align:left;border-top:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}tr:first-child th{border-top:0;color:var(--quiet);font-weight:600}
.number{text-align:right;white-space:nowrap}
";
