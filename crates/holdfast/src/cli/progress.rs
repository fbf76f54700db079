//! How far something is, on one line of a terminal; elsewhere a line whenever it has moved.

use std::io::{IsTerminal, Write};

use model::{Progress, Size};

/// The width of the bar itself.
const WIDTH: usize = 30;

/// Progress of one thing.
pub(crate) struct ProgressBar {
    what: String,
    live: bool,
    shown: String,
    most: usize,
}

impl ProgressBar {
    pub(crate) fn new(what: impl Into<String>) -> ProgressBar {
        let live = std::io::stderr().is_terminal();
        ProgressBar { what: what.into(), live, shown: String::new(), most: 0 }
    }

    /// Shows bytes.
    pub(crate) fn bytes(&mut self, progress: Progress) {
        let Progress { done, total, .. } = progress;
        let line = if total == Size::ZERO {
            format!("{} waits", self.what)
        } else {
            line(&self.what, progress.percent(), &format!("{done} of {total}"))
        };
        self.show(line);
    }

    /// Shows things that are left, of the most that ever were.
    pub(crate) fn count(&mut self, left: usize) {
        self.most = self.most.max(left);
        let most = self.most.max(1);
        let percent = most.saturating_sub(left).saturating_mul(100) / most;
        let percent = u8::try_from(percent).unwrap_or(100);
        self.show(line(&self.what, percent, &format!("{left} left")));
    }

    fn show(&mut self, line: String) {
        if line == self.shown {
            return;
        }
        // A terminal that cannot be written to needs no progress.
        let _ = if self.live {
            write!(std::io::stderr(), "\r\x1b[2K{line}")
        } else {
            writeln!(std::io::stderr(), "{line}")
        };
        self.shown = line;
    }

    pub(crate) fn end(self) {
        if self.live && !self.shown.is_empty() {
            let _ = writeln!(std::io::stderr());
        }
    }
}

fn line(what: &str, percent: u8, rest: &str) -> String {
    let full = usize::from(percent.min(100)) * WIDTH / 100;
    let bar = format!("{}{}", "█".repeat(full), "·".repeat(WIDTH - full));
    format!("{what} {bar} {percent:3} %  {rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_when_all_is_done() {
        let half = line("rebuild", 50, "1 of 2");
        assert_eq!((half.matches('█').count(), half.matches('·').count()), (15, 15));
        assert!(half.ends_with(" 50 %  1 of 2"), "{half}");
        assert_eq!(line("x", 100, "").matches('█').count(), WIDTH);
    }

    #[test]
    fn what_is_left_may_grow_meanwhile() {
        let mut bar = ProgressBar::new("drain");
        bar.count(3);
        bar.count(5);
        assert!(bar.shown.contains("  0 %"), "{}", bar.shown);
        bar.count(0);
        assert!(bar.shown.contains("100 %"), "{}", bar.shown);
    }
}
