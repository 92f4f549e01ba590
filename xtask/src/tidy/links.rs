//! Rule *links*: relative links in Markdown files lead to a file of the tree, and to a heading that
//! is there.

use super::Finding;
use super::tree::{Tree, resolve};

/// Reports links that lead nowhere.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        for (line, target) in links(text) {
            if let Some(message) = judge(tree, path, &target) {
                let remedy = "mend the link, or add what it leads to".to_string();
                findings.push(Finding {
                    path: path.to_string(),
                    line,
                    rule: "links",
                    message,
                    remedy,
                });
            }
        }
    }
    findings
}

/// What is wrong with a link from `path`.
fn judge(tree: &Tree, path: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let destination = if file.is_empty() {
        path.to_string()
    } else {
        resolve(folder, file)
    };
    if !tree.has(&destination) {
        return Some(format!("link to `{target}`, which is not in the tree"));
    }
    let text = tree
        .text(&destination)
        .filter(|_| destination.ends_with(".md"))?;
    let is_there = heading.is_empty() || headings(text).any(|name| name == heading);
    (!is_there).then(|| format!("link to `{target}`: there is no such heading"))
}

/// Lines outside fenced code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        (!fenced && !is_fence).then_some((index + 1, line))
    })
}

/// Targets of `[text](target)` and `[name]: target`, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Inline code may show a link without being one.
        let shown: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let inline = shown
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', ' ']).next());
        let defined = shown
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "));
        let defined = defined.and_then(|(_, rest)| rest.split_whitespace().next());
        found.extend(
            inline
                .chain(defined)
                .map(|target| (number, target.to_string())),
        );
    }
    found
}

/// The anchors that headings get: lower case, blanks as hyphens, punctuation dropped.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let titles = prose(text).filter(|(_, line)| line.starts_with('#'));
    titles.map(|(_, line)| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}
