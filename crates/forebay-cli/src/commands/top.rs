//! `forebay top`: sessions as they work, in a terminal.

mod model;
mod screen;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::arguments::Top;
use crate::failure::{DONE, Failure};
use crate::sessions;
use model::{Action, Model};

/// Shows them until it is told to end.
pub fn run(arguments: &Top) -> Result<u8, Failure> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(
            "top needs a terminal; `forebay stat --watch 1` writes lines, with --json for programs"
                .into(),
        ));
    }
    let config = arguments.whose.config()?;
    let mut model = Model::new(Duration::from_secs_f64(arguments.interval));
    let look = |model: &mut Model| -> Result<(), Failure> {
        let found = sessions::find(
            config.arena_dir.as_deref(),
            arguments.whose.session.as_deref(),
        )?;
        model.take(Instant::now(), found);
        Ok(())
    };
    look(&mut model)?;
    if let (true, Some(name)) = (model.is_empty(), arguments.whose.session.as_deref()) {
        return Err(sessions::none_such(name));
    }
    let mut terminal = ratatui::try_init().map_err(|error| no_terminal(&error))?;
    let shown = show(&mut terminal, &mut model, look);
    ratatui::restore();
    shown.map(|()| DONE)
}

fn show(
    terminal: &mut DefaultTerminal,
    model: &mut Model,
    mut look: impl FnMut(&mut Model) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut next = Instant::now() + model.interval();
    loop {
        terminal
            .draw(|frame| screen::draw(frame, model))
            .map_err(|error| no_terminal(&error))?;
        let wait = next.saturating_duration_since(Instant::now());
        if event::poll(wait).map_err(|error| no_terminal(&error))? {
            let event = event::read().map_err(|error| no_terminal(&error))?;
            match action(&event) {
                Some(Action::End) => return Ok(()),
                Some(action) => model.act(action),
                None => {}
            }
        }
        if Instant::now() >= next {
            if !model.is_held() {
                look(model)?;
            }
            next = Instant::now() + model.interval();
        }
    }
}

/// What a key asks for.
fn action(event: &Event) -> Option<Action> {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press | KeyEventKind::Repeat,
        ..
    }) = event
    else {
        return None;
    };
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Action::End,
        KeyCode::Char('q') | KeyCode::Esc => Action::End,
        KeyCode::Up | KeyCode::Char('k') => Action::Up,
        KeyCode::Down | KeyCode::Char('j') => Action::Down,
        KeyCode::Tab | KeyCode::Char('s') => Action::Sort,
        KeyCode::Char('v') => Action::View,
        KeyCode::Char('p' | ' ') => Action::Hold,
        KeyCode::Char('+') => Action::Slower,
        KeyCode::Char('-') => Action::Faster,
        _ => return None,
    })
}

fn no_terminal(error: &std::io::Error) -> Failure {
    Failure::Failed(format!("the terminal cannot be used: {error}"))
}
