//! The screen: sessions above, the chosen one's curves in the middle, its files below.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, Cell, Gauge, Paragraph, Row as TableRow, Sparkline, Table, TableState,
};

use forebay::session::streams::StreamKind;

use super::model::{Model, Order, Rates, Session, View};
use crate::output::{self, bytes};

const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

/// Draws everything anew.
pub fn draw(frame: &mut Frame<'_>, model: &Model) {
    let sessions = (model.sessions().len() as u16 + 1).clamp(2, 8);
    let [head, table, gauges, curves, files, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(sessions),
        Constraint::Length(2),
        Constraint::Length(8),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let held = if model.is_held() {
        ", standing still"
    } else {
        ""
    };
    let interval = model.interval().as_secs_f64();
    frame.render_widget(
        Line::from(vec![
            Span::styled("forebay top", STRONG),
            Span::styled(format!("  every {interval} s{held}"), FAINT),
        ]),
        head,
    );
    draw_sessions(frame, model, table);
    match model.chosen() {
        None => frame.render_widget("no sessions; `forebay run -- CMD` starts one", gauges),
        Some(session) => {
            draw_gauges(frame, session, gauges);
            draw_curves(frame, model.rates(session), curves);
            match model.view() {
                View::Files => draw_files(frame, model, session, files),
                View::Streams => draw_streams(frame, model, session, files),
            }
        }
    }
    let keys = "q end   up/down session   v files or streams   s order of files   p stand still   +/- slower, faster";
    frame.render_widget(Span::styled(keys, FAINT), foot);
}

fn last(curve: Option<&std::collections::VecDeque<u64>>) -> String {
    match curve.and_then(|curve| curve.back()) {
        Some(rate) => format!("{}/s", bytes(*rate)),
        None => "-".into(),
    }
}

fn draw_sessions(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let rows = model.sessions().iter().map(|session| {
        let row = &session.row;
        let rates = model.rates(session);
        let dirty = row.stats.map(|stats| bytes(stats.dirty_bytes));
        let state = match row.state {
            "alive" => Style::new().fg(Color::Green),
            "busy" => Style::new().fg(Color::Yellow),
            _ => Style::new().fg(Color::Red),
        };
        TableRow::new([
            Cell::from(row.session.clone()),
            Cell::from(row.state).style(state),
            Cell::from(row.members.processes.len().to_string()),
            Cell::from(last(rates.map(|r| &r.written))),
            Cell::from(last(rates.map(|r| &r.read))),
            Cell::from(last(rates.map(|r| &r.device_written))),
            Cell::from(last(rates.map(|r| &r.device_read))),
            Cell::from(dirty.unwrap_or_default()),
        ])
    });
    let mut widths = vec![
        Constraint::Min(12),
        Constraint::Length(10),
        Constraint::Length(9),
    ];
    widths.resize(8, Constraint::Length(13));
    let head = [
        "session",
        "state",
        "processes",
        "written",
        "read",
        "dev written",
        "dev read",
        "dirty",
    ];
    let table = Table::new(rows, widths)
        .header(TableRow::new(head).style(STRONG))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(Some(model.chosen_at()));
    frame.render_stateful_widget(table, area, &mut state);
}

/// How full the memory is, and how much of it is owed.
fn draw_gauges(frame: &mut Frame<'_>, session: &Session, area: Rect) {
    let (Some(stats), Some(budget)) = (session.row.stats, session.row.memory_budget_bytes) else {
        let why = session
            .row
            .remedy
            .as_deref()
            .unwrap_or("nothing is known of it");
        frame.render_widget(Paragraph::new(why.to_owned()), area);
        return;
    };
    let used = stats
        .memory_held_bytes
        .saturating_sub(stats.memory_free_bytes);
    let lines: [Rect; 2] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    let of = |part: u64| (part as f64 / budget.max(1) as f64).clamp(0.0, 1.0);
    for (name, part, color, line) in [
        ("in use", used, Color::Blue, lines[0]),
        ("owed  ", stats.owed_bytes, Color::Yellow, lines[1]),
    ] {
        let gauge = Gauge::default()
            .gauge_style(Style::new().fg(color))
            .ratio(of(part))
            .label(format!("{name} {} of {}", bytes(part), bytes(budget)));
        frame.render_widget(gauge, line);
    }
}

fn draw_curves(frame: &mut Frame<'_>, rates: Option<&Rates>, area: Rect) {
    let none = Rates::default();
    let rates = rates.unwrap_or(&none);
    let halves: [Rect; 2] = Layout::vertical([Constraint::Ratio(1, 2); 2]).areas(area);
    let curves = [
        ("written", &rates.written, Color::Green),
        ("read", &rates.read, Color::Cyan),
        ("device written", &rates.device_written, Color::Magenta),
        ("device read", &rates.device_read, Color::Blue),
    ];
    for (pair, half) in curves.chunks(2).zip(halves) {
        let sides: [Rect; 2] = Layout::horizontal([Constraint::Ratio(1, 2); 2]).areas(half);
        for ((name, curve, color), side) in pair.iter().zip(sides) {
            let most = curve.iter().copied().max().unwrap_or(0);
            let title = format!("{name} {}, at most {}/s", last(Some(curve)), bytes(most));
            let block = Block::new().title(Span::styled(title, STRONG));
            let width = usize::from(block.inner(side).width);
            let from = curve.len().saturating_sub(width);
            let shown: Vec<u64> = curve.iter().skip(from).copied().collect();
            let line = Sparkline::default()
                .data(shown)
                .style(Style::new().fg(*color))
                .block(block);
            frame.render_widget(line, side);
        }
    }
}

fn draw_files(frame: &mut Frame<'_>, model: &Model, session: &Session, area: Rect) {
    let files = model.files(session);
    let order = match model.order() {
        Order::Owed => "most owed first",
        Order::Size => "largest first",
        Order::Path => "by path",
    };
    let known = session.files.len();
    let title = format!("files: {} open or owing of {known}, {order}", files.len());
    let rows = files.iter().map(|file| {
        let state = match (file.flush_errno, file.kernel_reason) {
            (0, 0) if file.is_open => "open".to_owned(),
            (0, 0) => "closed".to_owned(),
            (0, _) => "with the kernel".to_owned(),
            (errno, _) => std::io::Error::from_raw_os_error(errno).to_string(),
        };
        let style = match file.flush_errno {
            0 => Style::new(),
            _ => Style::new().fg(Color::Red),
        };
        TableRow::new([
            Cell::from(bytes(file.owed_bytes)),
            Cell::from(bytes(file.size_bytes)),
            Cell::from(state),
            Cell::from(output::path(&file.path)),
        ])
        .style(style)
    });
    let widths = [
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(16),
        Constraint::Min(20),
    ];
    let table = Table::new(rows, widths)
        .header(TableRow::new(["owed", "size", "state", "path"]).style(STRONG))
        .block(Block::new().title(Span::styled(title, STRONG)));
    frame.render_widget(table, area);
}

fn draw_streams(frame: &mut Frame<'_>, model: &Model, session: &Session, area: Rect) {
    let streams = model.streams(session);
    let owing = streams.iter().filter(|stream| stream.dirty_start.is_some());
    let title = format!(
        "streams: {}, of which {} may owe something",
        streams.len(),
        owing.count()
    );
    let rows = streams.iter().map(|stream| {
        let dirty = match (stream.dirty_start, stream.dirty_end) {
            (Some(start), Some(end)) => format!("{} to {}", bytes(start), bytes(end)),
            _ => String::new(),
        };
        let kind = match stream.kind {
            StreamKind::Once => "once",
            StreamKind::Again => "again",
        };
        TableRow::new([
            Cell::from(format!("{} to {}", bytes(stream.start), bytes(stream.end))),
            Cell::from(dirty),
            Cell::from(kind),
            Cell::from(format!("{:.1} s", stream.age.as_secs_f64())),
            Cell::from(output::path(&stream.path)),
        ])
    });
    let widths = [
        Constraint::Length(24),
        Constraint::Length(24),
        Constraint::Length(6),
        Constraint::Length(10),
        Constraint::Min(20),
    ];
    let table = Table::new(rows, widths)
        .header(TableRow::new(["range", "may be dirty", "used", "age", "path"]).style(STRONG))
        .block(Block::new().title(Span::styled(title, STRONG)));
    frame.render_widget(table, area);
}
