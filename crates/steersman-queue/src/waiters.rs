// SPDX-License-Identifier: Apache-2.0
//! Tasks that wait in `next()`, and the one of them that keeps the timer.
//!
//! A waiter is *waiting*, *notified* (woken to take a key) or the *timer waiter*, which waits like the others and also
//! sleeps until the earliest deadline, because the queue has no task. The timer waiter is notified of a key only if there is
//! no other waiter, so that the role does not change with every key.
//!
//! All of this is under the queue's lock. Wakers are only returned, to be woken or dropped after the lock is released:
//! both can run any code, and the last waker of a task can drop a future that waits here.
//!
//! # Invariants
//! After every change to the queue:
//! 1. If a key can be taken and a task is waiting, a task is notified. A notified waiter either takes a key and settles
//!    again, or leaves (also by being dropped) and settles again; so the notification is never lost.
//! 2. If a timer runs and a task is waiting, there is a timer waiter, which sleeps no longer than the earliest deadline or
//!    has been woken to check.

use std::task::Waker;

use slab::Slab;
use steersman_core::MonotonicTime;

use crate::list::{Linked, Links, List};

#[derive(Debug)]
struct Waiter {
    links: Links,
    role: WaiterRole,
    waker: Waker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaiterRole {
    Waiting,
    Timer,
    Notified,
}

impl Linked<()> for Waiter {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    slab: Slab<Waiter>,
    waiting: List<()>,
    timer_waiter: Option<u32>,
    /// Time until which the timer waiter sleeps, or will sleep after its next check.
    armed: Option<MonotonicTime>,
    notified: usize,
    /// A waker that is no longer needed.
    retired: Option<Waker>,
}

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// Returns a waker to drop after the lock is released. No step leaves more than one.
    pub(crate) fn take_retired(&mut self) -> Option<Waker> {
        self.retired.take()
    }

    /// Registers or renews a waiter that found no key. Returns the time until which it must sleep, if it is the timer waiter.
    pub(crate) fn wait(
        &mut self,
        id: &mut Option<u32>,
        waker: &Waker,
        earliest: Option<MonotonicTime>,
    ) -> Option<MonotonicTime> {
        let index = match *id {
            None => {
                let waiter = Waiter {
                    links: Links::NONE,
                    role: WaiterRole::Waiting,
                    waker: waker.clone(),
                };
                let index = self.slab.insert(waiter) as u32;
                self.waiting.push_back(&mut self.slab, index);
                *id = Some(index);
                index
            }
            Some(index) => {
                let waiter = &mut self.slab[index as usize];
                if !waiter.waker.will_wake(waker) {
                    self.retired = Some(std::mem::replace(&mut waiter.waker, waker.clone()));
                }
                if waiter.role == WaiterRole::Notified {
                    waiter.role = WaiterRole::Waiting;
                    self.notified -= 1;
                    self.waiting.push_back(&mut self.slab, index);
                }
                index
            }
        };
        if self.timer_waiter.is_none() && earliest.is_some() {
            self.set_timer_waiter(index);
        }
        if self.timer_waiter != Some(index) {
            return None;
        }
        self.armed = earliest;
        earliest
    }

    /// Removes a waiter that took a key, ended or was dropped.
    pub(crate) fn leave(&mut self, id: u32) {
        match self.slab[id as usize].role {
            WaiterRole::Waiting => self.waiting.remove(&mut self.slab, id),
            WaiterRole::Timer => self.clear_timer_waiter(),
            WaiterRole::Notified => self.notified -= 1,
        }
        self.retired = Some(self.slab.remove(id as usize).waker);
    }

    /// Notifies one more waiter if there are more keys than notified waiters.
    pub(crate) fn notify(&mut self, eligible: usize) -> Option<Waker> {
        if self.notified >= eligible {
            return None;
        }
        let index = self.waiting.front().or(self.timer_waiter)?;
        let waiter = &mut self.slab[index as usize];
        match std::mem::replace(&mut waiter.role, WaiterRole::Notified) {
            WaiterRole::Timer => self.clear_timer_waiter(),
            _ => self.waiting.remove(&mut self.slab, index),
        }
        self.notified += 1;
        Some(self.slab[index as usize].waker.clone())
    }

    /// Ensures that there is a timer waiter, and returns the task to wake for it.
    pub(crate) fn keep_time(&mut self, earliest: MonotonicTime) -> Option<Waker> {
        let timer_waiter = match self.timer_waiter {
            Some(_) if self.armed.is_some_and(|armed| armed <= earliest) => return None,
            Some(timer_waiter) => timer_waiter,
            None => {
                let index = self.waiting.front()?;
                self.set_timer_waiter(index);
                index
            }
        };
        self.armed = Some(earliest);
        Some(self.slab[timer_waiter as usize].waker.clone())
    }

    /// Notifies all waiters, because no more keys will be handed out.
    pub(crate) fn notify_all(&mut self) -> Vec<Waker> {
        std::iter::from_fn(|| self.notify(usize::MAX)).collect()
    }

    fn set_timer_waiter(&mut self, index: u32) {
        self.waiting.remove(&mut self.slab, index);
        self.slab[index as usize].role = WaiterRole::Timer;
        self.timer_waiter = Some(index);
    }

    fn clear_timer_waiter(&mut self) {
        self.timer_waiter = None;
        self.armed = None;
    }
}
