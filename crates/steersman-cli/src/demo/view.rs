// SPDX-License-Identifier: Apache-2.0
//! Output of the demo: permanent lines and, on a terminal, a few lines below them that are redrawn.

use std::{
    future::Future,
    io::{self, IsTerminal, Write},
    pin::pin,
    time::Duration,
};

use serde_json::Value;
use steersman_core::{Clock, Mutex, TokioClock};

use super::scene::Scene;
use crate::{args::Demo, exit::OutputError, terminal::Paint};

/// Redraw interval of the lower lines.
const FRAME: Duration = Duration::from_millis(100);

/// Output of the demo.
pub(crate) struct View {
    inner: Mutex<Inner>,
    paint: Paint,
    is_live: bool,
}

struct Inner {
    out: Box<dyn Write + Send>,
    /// JSON output for programs, if enabled. It can be the same terminal.
    data: Option<Box<dyn Write + Send>>,
    /// Lines below the permanent ones.
    live: Vec<String>,
    /// Number of these lines on the screen.
    drawn: usize,
}

impl View {
    pub(crate) fn new(options: &Demo) -> Self {
        // With `--json`, standard output is for measurements.
        let (out, is_terminal, paint): (Box<dyn Write + Send>, bool, Paint) = if options.json {
            (
                Box::new(io::stderr()),
                io::stderr().is_terminal(),
                Paint::stderr(),
            )
        } else {
            (
                Box::new(io::stdout()),
                io::stdout().is_terminal(),
                Paint::stdout(),
            )
        };
        let data = options.json.then(|| Box::new(io::stdout()) as _);
        Self::on(
            out,
            data,
            is_terminal && !options.plain,
            if options.plain { Paint::none() } else { paint },
        )
    }

    fn on(
        out: Box<dyn Write + Send>,
        data: Option<Box<dyn Write + Send>>,
        is_live: bool,
        paint: Paint,
    ) -> Self {
        let inner = Inner {
            out,
            data,
            live: Vec::new(),
            drawn: 0,
        };
        Self {
            inner: Mutex::new(inner),
            paint,
            is_live,
        }
    }

    pub(crate) fn paint(&self) -> Paint {
        self.paint
    }

    /// Adds a permanent line.
    pub(crate) fn line(&self, text: &str) -> Result<(), OutputError> {
        self.above(|inner| writeln!(inner.out, "{text}"))
    }

    /// Writes a measurement for programs, if JSON output is enabled.
    pub(crate) fn datum(&self, value: &Value) -> Result<(), OutputError> {
        self.above(|inner| {
            let Some(data) = &mut inner.data else {
                return Ok(());
            };
            writeln!(data, "{value}")?;
            data.flush()
        })
    }

    /// Removes the lower lines.
    pub(crate) fn clear(&self) -> Result<(), OutputError> {
        self.show(Vec::new())
    }

    /// Replaces the lower lines.
    fn show(&self, lines: Vec<String>) -> Result<(), OutputError> {
        self.above(|inner| {
            inner.live = lines;
            Ok(())
        })
    }

    /// Runs `write` while the lower lines are off the screen: its output stays above them.
    fn above(&self, write: impl FnOnce(&mut Inner) -> io::Result<()>) -> Result<(), OutputError> {
        let mut inner = self.inner.lock();
        inner.erase()?;
        write(&mut inner)?;
        Ok(inner.draw()?)
    }
}

impl Inner {
    fn erase(&mut self) -> io::Result<()> {
        if self.drawn > 0 {
            write!(self.out, "\x1b[{}A\r\x1b[J", self.drawn)?;
            self.out.flush()?;
            self.drawn = 0;
        }
        Ok(())
    }

    fn draw(&mut self) -> io::Result<()> {
        for line in &self.live {
            writeln!(self.out, "{line}")?;
        }
        self.drawn = self.live.len();
        self.out.flush()
    }
}

/// Runs `work` while the scene is shown.
pub(crate) async fn during<T>(view: &View, scene: &Scene, title: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if !view.is_live {
        return work.await;
    }
    let clock = TokioClock::new();
    let began = clock.now();
    loop {
        tokio::select! {
            biased;
            done = &mut work => {
                // If this fails, the next line fails too, and that error is reported.
                let _ = view.clear();
                return done;
            }
            () = clock.sleep_until(clock.now() + FRAME) => {
                let elapsed = clock.now().saturating_since(began);
                let lines = scene.lines(title, elapsed).await;
                let _ = view.show(lines.iter().map(|line| view.paint.dim(fit(line))).collect());
            }
        }
    }
}

/// Cuts a line to the width of the terminal. A wrapped line would break the redrawing.
fn fit(line: &str) -> String {
    let size =
        rustix::termios::tcgetwinsize(io::stdout()).or_else(|_| rustix::termios::tcgetwinsize(io::stderr()));
    // Some terminals report a width of zero.
    let width = size.map_or(0, |size| usize::from(size.ws_col));
    let width = if width == 0 { 80 } else { width };
    line.chars().take(width - 1).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_stay_come_above_those_that_are_drawn_anew() {
        let screen = Screen::default();
        let view = View::on(Box::new(screen.clone()), None, true, Paint::none());
        view.show(vec!["one leads".to_owned(), "two is warm".to_owned()])
            .unwrap();
        view.line("done").unwrap();
        view.clear().unwrap();
        let text = String::from_utf8(screen.0.lock().clone()).unwrap();
        let (up, block) = ("\x1b[2A\r\x1b[J", "one leads\ntwo is warm\n");
        assert_eq!(text, format!("{block}{up}done\n{block}{up}"));
    }

    #[test]
    fn measurements_on_the_same_terminal_stay_as_well() {
        let screen = Screen::default();
        let data: Box<dyn Write + Send> = Box::new(screen.clone());
        let view = View::on(Box::new(screen.clone()), Some(data), true, Paint::none());
        view.show(vec!["one leads".to_owned()]).unwrap();
        view.datum(&Value::from(7)).unwrap();
        let text = String::from_utf8(screen.0.lock().clone()).unwrap();
        assert_eq!(text, "one leads\n\x1b[1A\r\x1b[J7\none leads\n");
    }

    #[test]
    fn plain_lines_have_no_escapes() {
        let screen = Screen::default();
        let view = View::on(Box::new(screen.clone()), None, false, Paint::none());
        view.line("a").unwrap();
        view.clear().unwrap();
        assert_eq!(*screen.0.lock(), b"a\n");
    }
}
