//! The view that a person chose in `cairn top`, by keys: the order, a filter, the help.

use std::cell::RefCell;

use super::look::{Look, Order, Row, Tone};

/// Ctrl-C and Ctrl-D, as a terminal sends them that gives keys one by one.
const CTRL_C: u8 = 3;
const CTRL_D: u8 = 4;
const BACKSPACE: [u8; 2] = [8, 127];
const ESCAPE: u8 = 27;
const ENTER: [u8; 2] = [b'\r', b'\n'];
/// A longer filter matches no name.
const FILTER_MAX: usize = 128;

const HELP: [&str; 8] = [
    "Keys of cairn top",
    "",
    "  q        quit",
    "  ? or h   show or hide this help",
    "  s        sort by activity, by name, or by latency and lag",
    "  /        show names that contain a text; Enter keeps it, Esc removes it",
    "",
    "Marks: ! needs a look, !! needs action; see `cairn status`.",
];

/// The choices.
#[derive(Debug)]
pub struct View {
    order: Order,
    filter: String,
    typing: bool,
    help: bool,
    colours: bool,
}

/// The action of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressed {
    /// The end.
    Leave,
    /// Another picture.
    Redraw,
    Nothing,
}

impl View {
    /// As it begins. `colours` is false where the terminal or its user wants none.
    pub fn new(colours: bool) -> RefCell<Self> {
        let view = Self { order: Order::Busy, filter: String::new(), typing: false, help: false, colours };
        RefCell::new(view)
    }

    /// Takes keys in.
    pub fn press(&mut self, keys: &[u8]) -> Pressed {
        let mut outcome = Pressed::Nothing;
        for key in keys {
            match self.press_one(*key) {
                Pressed::Leave => return Pressed::Leave,
                Pressed::Redraw => outcome = Pressed::Redraw,
                Pressed::Nothing => {}
            }
        }
        outcome
    }

    fn press_one(&mut self, key: u8) -> Pressed {
        match key {
            CTRL_C | CTRL_D => return Pressed::Leave,
            ESCAPE => {
                self.help = false;
                self.typing = false;
                self.filter.clear();
            }
            key if self.typing && ENTER.contains(&key) => self.typing = false,
            key if self.typing && BACKSPACE.contains(&key) => drop(self.filter.pop()),
            key if self.typing => match char::from(key) {
                letter if letter.is_ascii_graphic() && self.filter.len() < FILTER_MAX => {
                    self.filter.push(letter);
                }
                _ => return Pressed::Nothing,
            },
            b'q' | b'Q' => return Pressed::Leave,
            b'?' | b'h' | b'H' => self.help = !self.help,
            b's' | b'S' => {
                self.order = match self.order {
                    Order::Busy => Order::Name,
                    Order::Name => Order::Slow,
                    Order::Slow => Order::Busy,
                };
            }
            b'/' => {
                self.typing = true;
                self.help = false;
            }
            _ => return Pressed::Nothing,
        }
        Pressed::Redraw
    }

    /// The lines of a window, the last one with the keys.
    pub fn render(&self, mut look: Look, width: usize, height: usize) -> Vec<String> {
        let room = height.saturating_sub(1).max(1);
        let mut rows = match self.help {
            true => HELP.iter().map(|text| Row { tone: Tone::Plain, text: (*text).to_owned() }).collect(),
            false => {
                if !self.filter.is_empty() {
                    look.keep(&self.filter);
                }
                look.sort(self.order);
                look.render(width, room)
            }
        };
        rows.truncate(room);
        if height > 1 {
            rows.resize(room, Row { tone: Tone::Plain, text: String::new() });
            rows.push(Row { tone: Tone::Heading, text: self.keys_line() });
        }
        rows.into_iter().map(|row| self.paint(&row, width)).collect()
    }

    fn keys_line(&self) -> String {
        let order = match self.order {
            Order::Busy => "activity",
            Order::Name => "name",
            Order::Slow => "latency and lag",
        };
        match (self.typing, self.filter.is_empty()) {
            (true, _) => format!("filter: {}_", self.filter),
            (false, true) => format!("q quit  ? help  s sort: {order}  / filter"),
            (false, false) => format!("q quit  ? help  s sort: {order}  / filter: {}", self.filter),
        }
    }

    fn paint(&self, row: &Row, width: usize) -> String {
        let text: String = row.text.chars().take(width).collect();
        let code = match row.tone {
            _ if !self.colours || text.is_empty() => return text,
            Tone::Plain => return text,
            Tone::Heading => "1",
            Tone::Warning => "33",
            Tone::Critical => "31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Whether the terminal has colours, and its user wants them (<https://no-color.org>).
pub fn has_colours() -> bool {
    let is_wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    is_wanted && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

#[cfg(test)]
mod tests;
