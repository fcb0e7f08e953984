// SPDX-License-Identifier: Apache-2.0
//! Control of one running watch by faults.

use tokio::sync::watch;

/// Way to end a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cut {
    /// Ends the stream as a timeout does, without an error.
    Clean,
    /// Breaks the connection in the middle of an event.
    MidLine,
    /// Breaks the connection between two events.
    Reset,
}

#[derive(Clone, Copy, Debug, Default)]
struct Wish {
    paused: bool,
    /// Number of events before the cut, and how to cut.
    cut: Option<(usize, Cut)>,
}

/// The watch's side: read before every event.
#[derive(Debug)]
pub(crate) struct Control {
    wishes: watch::Receiver<Wish>,
    own: watch::Sender<Wish>,
}

/// The fault's side.
#[derive(Clone, Debug)]
pub(crate) struct Lever(watch::Sender<Wish>);

pub(crate) fn pair() -> (Lever, Control) {
    let (sender, wishes) = watch::channel(Wish::default());
    (Lever(sender.clone()), Control { wishes, own: sender })
}

impl Lever {
    pub(crate) fn pause(&self, paused: bool) {
        self.0.send_modify(|wish| wish.paused = paused);
    }

    /// Cuts the watch once it has sent this many events.
    pub(crate) fn cut(&self, after: usize, how: Cut) {
        self.0.send_modify(|wish| wish.cut = Some((after, how)));
    }

    /// Returns true if the watch has ended.
    pub(crate) fn is_dead(&self) -> bool {
        self.0.receiver_count() == 0
    }
}

impl Control {
    pub(crate) fn is_paused(&self) -> bool {
        self.wishes.borrow().paused
    }

    pub(crate) fn cut_after(&self, sent: usize) -> Option<Cut> {
        self.wishes
            .borrow()
            .cut
            .filter(|(after, _)| sent >= *after)
            .map(|(_, how)| how)
    }

    /// Returns the maximum total number of events.
    pub(crate) fn limit(&self) -> Option<usize> {
        self.wishes.borrow().cut.map(|(after, _)| after)
    }

    /// Makes the watch break the connection next.
    pub(crate) fn reset_next(&self) {
        self.own.send_modify(|wish| wish.cut = Some((0, Cut::Reset)));
    }

    pub(crate) async fn changed(&mut self) {
        if self.wishes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
