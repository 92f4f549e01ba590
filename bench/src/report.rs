//! Tables for people and JSON for programs, from the same values.

use serde::Serialize;

use crate::conditions::Conditions;
use crate::place::PlaceName;
use crate::run::Measured;
use crate::stats::Summary;
use crate::workload::{Line, Metric, Run, Target, Workload};

/// Everything one invocation measured.
#[derive(Serialize)]
pub struct Report {
    /// Where and when.
    pub conditions: Conditions,
    /// In the order they ran.
    pub workloads: Vec<WorkloadReport>,
    /// Of the rows about techniques, in the order they ran.
    #[cfg(feature = "engine")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub techniques: Vec<crate::ablation::Part>,
}

/// One workload.
#[derive(Serialize)]
pub struct WorkloadReport {
    /// Row and variant.
    pub name: String,
    /// File system and device.
    pub place: PlaceName,
    /// Requests of each run.
    pub requests: u64,
    /// Bytes of each run.
    pub bytes: u64,
    /// Size of the part of the file they fall on.
    pub span: u64,
    /// Every run of every side.
    pub sides: Vec<SideReport>,
    /// Quantities, compared.
    pub lines: Vec<LineReport>,
}

/// One side's runs.
#[derive(Serialize)]
pub struct SideReport {
    /// The side.
    pub name: String,
    /// Why it took no part.
    pub unavailable: Option<String>,
    /// In the order of rounds.
    pub runs: Vec<Run>,
    /// CPU seconds of this process.
    pub process_cpu_s: Option<Summary>,
    /// CPU seconds of the whole machine.
    pub machine_cpu_s: Option<Summary>,
}

/// One quantity of all sides.
#[derive(Serialize)]
pub struct LineReport {
    /// What, with the moment that counts as done.
    pub label: &'static str,
    /// The unit, empty for a share.
    pub unit: &'static str,
    /// What the engine is to reach.
    pub target: Option<Target>,
    /// One for each side that ran.
    pub cells: Vec<Cell>,
}

/// One quantity of one side.
#[derive(Serialize)]
pub struct Cell {
    /// The side.
    pub side: String,
    /// Middle and ends.
    pub summary: Summary,
    /// How many times better than the plain kernel, median to median.
    pub ratio: Option<f64>,
    /// The same, round by round: how far to trust it.
    pub ratio_by_round: Option<Summary>,
    /// Whether the engine reached the target; nothing is asked of the other sides.
    pub met: Option<bool>,
}

impl WorkloadReport {
    /// Compares the sides of one workload.
    pub fn new(workload: &Workload, measured: Measured) -> Self {
        let lines = workload
            .lines
            .iter()
            .map(|line| LineReport::new(line, &measured))
            .collect();
        let first = measured.sides.iter().find_map(|side| side.runs.first());
        let (requests, bytes) = first.map_or((0, 0), |run| (run.requests, run.bytes));
        let of = |runs: &[Run], what: fn(&Run) -> f64| {
            Summary::of(&runs.iter().map(what).collect::<Vec<_>>())
        };
        let side = |side: crate::run::SideRuns| SideReport {
            name: side.kind.name(),
            unavailable: side.unavailable,
            process_cpu_s: of(&side.runs, |run| run.process_cpu_s),
            machine_cpu_s: of(&side.runs, |run| run.machine_cpu_s),
            runs: side.runs,
        };
        WorkloadReport {
            name: workload.name.clone(),
            place: measured.place,
            requests,
            bytes,
            span: workload.span,
            sides: measured.sides.into_iter().map(side).collect(),
            lines,
        }
    }

    /// The workload as a table.
    pub fn table(&self) -> String {
        let mut text = format!(
            "\n{}: {} requests, {:.3} GB, over {:.3} GB, on {} ({})\n",
            self.name,
            self.requests,
            self.bytes as f64 / 1e9,
            self.span as f64 / 1e9,
            self.place.file_system,
            self.place.device,
        );
        for line in self.lines.iter().filter(|line| !line.cells.is_empty()) {
            text += &line.table(&self.sides);
        }
        for side in self.sides.iter() {
            if let Some(why) = &side.unavailable {
                text += &format!("  {} took no part: {why}\n", side.name);
            }
        }
        text
    }
}

impl LineReport {
    fn new(line: &Line, measured: &Measured) -> Self {
        let metric = line.metric;
        let values = |runs: &[Run]| runs.iter().filter_map(|run| metric.of(run)).collect();
        let baseline: Vec<f64> = values(&measured.sides[0].runs);
        let cell = |side: &crate::run::SideRuns| {
            let own: Vec<f64> = values(&side.runs);
            let engine = side.kind.is_engine();
            Cell::new(
                side.kind.name(),
                &own,
                &baseline,
                metric,
                line.target.filter(|_| engine),
            )
        };
        let cells = measured.sides.iter().filter_map(cell).collect();
        LineReport {
            label: metric.label(),
            unit: metric.unit(),
            target: line.target,
            cells,
        }
    }

    fn table(&self, sides: &[SideReport]) -> String {
        let target = match self.target {
            Some(Target::Times(times)) => format!("; target: {times} times the kernel"),
            Some(Target::AtMost(most)) => format!("; target: at most {most}"),
            None => String::new(),
        };
        let asked = self.target.is_some() && self.cells.iter().all(|cell| cell.met.is_none());
        let unmeasured = if asked { " (engine not measured)" } else { "" };
        let median = format!("median {}", self.unit);
        let head = [
            "",
            median.trim(),
            "range",
            "",
            "x kernel",
            "by round",
            "CPU self",
            "CPU all",
            "",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for cell in &self.cells {
            let cpu = |what: fn(&SideReport) -> Option<Summary>| {
                let side = sides.iter().find(|side| side.name == cell.side);
                side.and_then(what)
                    .map_or("-".into(), |summary| format!("{:.2} s", summary.median))
            };
            let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
            let Summary { median, min, max } = cell.summary;
            rows.push(vec![
                cell.side.clone(),
                format!("{median:.3}"),
                format!("{min:.3}..{max:.3}"),
                format!("{:.0} %", cell.summary.spread() * 50.0),
                or_dash(cell.ratio.map(|ratio| format!("{ratio:.2}"))),
                or_dash(
                    cell.ratio_by_round
                        .map(|r| format!("{:.2}..{:.2}", r.min, r.max)),
                ),
                cpu(|side| side.process_cpu_s),
                cpu(|side| side.machine_cpu_s),
                cell.met
                    .map_or("", |met| if met { "met" } else { "missed" })
                    .into(),
            ]);
        }
        format!("  {}{target}{unmeasured}\n{}", self.label, columns(&rows))
    }
}

impl Cell {
    fn new(
        side: String,
        own: &[f64],
        baseline: &[f64],
        metric: Metric,
        target: Option<Target>,
    ) -> Option<Self> {
        let summary = Summary::of(own)?;
        // Where the kernel does nothing at all there is nothing to compare with.
        let usable = |ratio: &f64| ratio.is_finite();
        let ratio = Summary::of(baseline)
            .map(|base| metric.ratio(summary.median, base.median))
            .filter(usable);
        let rounds: Vec<f64> = own
            .iter()
            .zip(baseline)
            .map(|(&own, &base)| metric.ratio(own, base))
            .collect();
        let ratio_by_round = Summary::of(&rounds).filter(|summary| summary.max.is_finite());
        let met = target.map(|target| target.met(summary.median, ratio.unwrap_or(0.0)));
        Some(Cell {
            side,
            summary,
            ratio,
            ratio_by_round,
            met,
        })
    }
}

/// Aligns columns: the first to the left, the others to the right.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from("   ");
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match column {
                0 => line += &format!(" {cell:<width$}"),
                _ => line += &format!("  {cell:>width$}"),
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["".into(), "µs".into()],
            vec!["kernel".into(), "1.25".into()],
        ];
        assert_eq!(columns(&rows), "              µs\n    kernel  1.25\n");
    }

    #[test]
    fn a_cell_compares_medians_and_rounds() {
        let times = Metric::TimeReturned;
        let target = Some(Target::Times(4.0));
        let cell = Cell::new(
            "x".into(),
            &[1.0, 2.0, 1.0],
            &[4.0, 6.0, 5.0],
            times,
            target,
        )
        .unwrap();
        assert_eq!(cell.ratio, Some(5.0));
        let by_round = cell.ratio_by_round.unwrap();
        assert_eq!((by_round.min, by_round.max), (3.0, 5.0));
        assert_eq!(cell.met, Some(true));
        assert!(Cell::new("x".into(), &[], &[4.0], times, target).is_none());
    }

    #[test]
    fn nothing_is_asked_of_the_kernel_and_zero_is_no_baseline() {
        let cell = Cell::new("x".into(), &[1.0], &[0.0], Metric::SpeedDurable, None).unwrap();
        assert_eq!((cell.ratio, cell.met), (None, None));
    }
}
