//! Rule *unsafe*: the keyword stands only in the modules listed for it.
//!
//! That each block says why it is sound is clippy's business (`undocumented_unsafe_blocks`).

use super::Finding;
use super::config::Config;
use super::tree::Tree;

/// Reports the first `unsafe` of every file that may have none.
pub fn check(tree: &Tree, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in tree.sources() {
        if config.unsafety.iter().any(|entry| entry.holds(source.path)) {
            continue;
        }
        let Some(token) = source.tokens.iter().find(|token| token.text == "unsafe") else {
            continue;
        };
        findings.push(Finding {
            path: source.path.to_string(),
            line: token.line,
            rule: "unsafe",
            message: "`unsafe` in a module that is not listed for it".to_string(),
            remedy: format!(
                "call a safe function of `sys` or `memory`, or list the module with its reason in {}",
                super::CONFIG_PATH
            ),
        });
    }
    findings
}
