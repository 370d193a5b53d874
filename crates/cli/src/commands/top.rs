//! `cairn top`: the activity of a server, refreshed each second.
//!
//! Rates are the difference of two looks at counters that the API has anyway, a second apart;
//! latencies are as sessions keep them, of the last 5 to 10 seconds. The server does nothing for it
//! but answer `cairn status` once a second.
//!
//! On a terminal the view stays in place, on a screen of its own that fits the window. The earlier
//! content returns at the end: on `q`, Ctrl-C, a signal, or an error. Keys change the view: see
//! [`view`]. Elsewhere, and with `--once` or `--json`, one look is printed.

mod look;
mod screen;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use cairn_api as api;
use cairn_api::client::Client;

use crate::exit::Failure;
use crate::output::{Output, json, print_line};
use look::{Look, Seen};
use screen::Screen;
use view::{Pressed, View};

/// From one look to the next.
const EVERY: Duration = Duration::from_secs(1);
/// The interval at which keys and signals are read.
const KEYS_EVERY: Duration = Duration::from_millis(25);
/// The width of the output without a terminal.
const WIDTH: usize = 80;

/// Shows the activity of the server.
pub fn run(once: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let before = see(client)?;
    if once || output.json || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        std::thread::sleep(EVERY);
        let look = Look::between(&before, &see(client)?);
        if output.json {
            look.lines().iter().for_each(|line| print_line(&json(line)));
        } else {
            look.render(WIDTH, usize::MAX).iter().for_each(|row| print_line(row.text.trim_end()));
        }
        return Ok(());
    }
    let mut signals = [client.interrupts()?, client.terminations()?];
    let screen = Screen::open()?;
    let view = View::new(view::has_colours());
    // A closed terminal sends no keys any more.
    let pressed = || match screen.keys() {
        Some(keys) => view.borrow_mut().press(&keys),
        None => Pressed::Leave,
    };
    let mut last = before;
    let mut shown: Option<Look> = None;
    loop {
        let next = Instant::now() + EVERY;
        while Instant::now() < next {
            match pressed() {
                Pressed::Leave => return Ok(()),
                Pressed::Redraw => {
                    if let Some(look) = &shown {
                        draw(&screen, &view.borrow(), look)?;
                    }
                }
                Pressed::Nothing => {}
            }
            if signals.iter_mut().any(|signal| client.wait(KEYS_EVERY, signal)) {
                return Ok(());
            }
        }
        // The user can leave while a server does not answer.
        let leaves = || pressed() == Pressed::Leave;
        let Some(status) = client.get_unless("/v1/status", &mut signals, KEYS_EVERY, &leaves)? else {
            return Ok(());
        };
        let Some(jobs) = client.get_unless("/v1/jobs", &mut signals, KEYS_EVERY, &leaves)? else {
            return Ok(());
        };
        let now = Seen { at: Instant::now(), status, jobs };
        let look = Look::between(&last, &now);
        draw(&screen, &view.borrow(), &look)?;
        (last, shown) = (now, Some(look));
    }
}

fn draw(screen: &Screen, view: &View, look: &Look) -> Result<(), Failure> {
    let (width, height) = screen.size();
    Ok(screen.draw(&view.render(look.clone(), width, height))?)
}

fn see(client: &Client) -> Result<Seen, Failure> {
    let status: api::Status = client.get("/v1/status")?;
    let jobs: Vec<api::Job> = client.get("/v1/jobs")?;
    Ok(Seen { at: Instant::now(), status, jobs })
}
