//! `sidecore top`: who is at work now, at what rate, and which vCPUs have a core; again and again.
//!
//! Here: when is looked, and where it is shown. What is asked and made of it is [`rates`]; how it looks, [`text`].

mod keys;
mod rates;
mod text;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::cli::TopArgs;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{Output, screen};
use crate::overview::pause;
use crate::table::Room;
use keys::{Key, Keys};
use rates::{Look, Rates};

/// To the upper left corner, and nothing below.
const ANEW: &str = "\x1b[H\x1b[J";
/// What `?` shows.
const HELP: &str = "\
q  ends it, as Ctrl-C does
?  shows this; any key goes on
   any other key looks again at once

BUSY is the time with requests and frames, POLL the time looking for some
in vain; the rest is sleep. Rates are of the time between two looks; P50 and
P99 are those of `sidecore show`. `sidecore top --help` says what else is
shown.
";

/// `top`: without end on a terminal, once otherwise.
pub(crate) fn run(args: &TopArgs, client: &Client, output: &Output) -> Result<(), Failure> {
    let is_screen = !output.json && screen().is_some();
    let times = args.count.or(if is_screen { None } else { Some(1) });
    let interval = Duration::from_secs_f64(args.interval);
    let keys = if is_screen { Keys::take() } else { None };
    let (mut before, mut last) = (look(client)?, String::new());
    for nth in 0.. {
        if times.is_some_and(|times| nth >= times) {
            break;
        }
        match &keys {
            None => pause(interval),
            Some(keys) => match keys.within(interval) {
                Key::Quit => break,
                Key::Help => {
                    output.text(&format!("{ANEW}{HELP}"))?;
                    if keys.any() == Key::Quit {
                        break;
                    }
                }
                Key::Other | Key::None => {}
            },
        }
        match look(client) {
            Ok((at, now)) => {
                let mut rates = Rates::between(&before.1, &now, at.duration_since(before.0));
                rates.at = wall_clock();
                before = (at, now);
                if output.json {
                    output.text(&json(&rates)?)?;
                    continue;
                }
                last = if is_screen {
                    on_screen(&rates, output.room)
                } else {
                    text::whole(&rates, output.room)
                };
                let start = match (is_screen, nth) {
                    (true, _) => ANEW,
                    (false, 0) => "",
                    (false, _) => "\n",
                };
                output.text(&format!("{start}{last}"))?;
            }
            // A daemon that is started anew is there again soon.
            Err(failure) if is_screen => {
                let away = before.0.elapsed().as_secs();
                let said = failure.text();
                let said = said.lines().next().unwrap_or_default();
                let head = format!("for {away} s now, and asked again: {said}");
                output.text(&format!("{ANEW}{}", text::away(&head, &last, output.room)))?;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a rate is of the time that passed")]
fn look(client: &Client) -> Result<(Instant, Look), Failure> {
    let look = Look::take(client)?;
    Ok((Instant::now(), look))
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "for who reads it later")]
fn wall_clock() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

fn json(rates: &Rates) -> Result<String, Failure> {
    let json = serde_json::to_string(rates);
    let json =
        json.map_err(|error| Failure::usage(format!("no JSON could be made: {error}"), ""))?;
    Ok(json + "\n")
}

/// What the terminal has room for, less a line of a daemon that is away, and the one behind the last.
fn on_screen(rates: &Rates, room: Room) -> String {
    let lines = screen().map_or(usize::MAX, |[lines, _]| lines);
    text::screen(rates, lines.saturating_sub(2).max(1), room)
}
