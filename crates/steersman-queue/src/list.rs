// SPDX-License-Identifier: Apache-2.0
//! Doubly linked lists through the elements of a slab.
//!
//! A list allocates nothing, and removing any element takes constant time, which the queue needs to raise a priority or
//! to purge. Every element that can be in a list has [`Links`] for it. `Tag` distinguishes the lists when an element
//! can be in two at once.

use std::marker::PhantomData;

use slab::Slab;

/// Index that represents "none".
pub(crate) const NIL: u32 = u32::MAX;

/// Neighbours of an element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    pub(crate) const NONE: Self = Self { prev: NIL, next: NIL };
}

/// An element that can be in a list of kind `Tag`.
pub(crate) trait Linked<Tag> {
    fn links(&self) -> &Links;
    fn links_mut(&mut self) -> &mut Links;
}

#[derive(Debug)]
pub(crate) struct List<Tag> {
    head: u32,
    tail: u32,
    tag: PhantomData<Tag>,
}

impl<Tag> Default for List<Tag> {
    fn default() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            tag: PhantomData,
        }
    }
}

impl<Tag> List<Tag> {
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    /// Returns the element after `index`, which is in this list.
    pub(crate) fn next<T: Linked<Tag>>(&self, slab: &Slab<T>, index: u32) -> Option<u32> {
        let next = slab[index as usize].links().next;
        (next != NIL).then_some(next)
    }

    pub(crate) fn push_back<T: Linked<Tag>>(&mut self, slab: &mut Slab<T>, index: u32) {
        *slab[index as usize].links_mut() = Links {
            prev: self.tail,
            next: NIL,
        };
        match self.tail {
            NIL => self.head = index,
            tail => slab[tail as usize].links_mut().next = index,
        }
        self.tail = index;
    }

    /// Inserts `index` before `next`, or at the end if that is `None`.
    pub(crate) fn insert_before<T: Linked<Tag>>(
        &mut self,
        slab: &mut Slab<T>,
        next: Option<u32>,
        index: u32,
    ) {
        let Some(next) = next else {
            return self.push_back(slab, index);
        };
        let prev = slab[next as usize].links().prev;
        *slab[index as usize].links_mut() = Links { prev, next };
        slab[next as usize].links_mut().prev = index;
        match prev {
            NIL => self.head = index,
            prev => slab[prev as usize].links_mut().next = index,
        }
    }

    /// Removes `index`, which must be in this list.
    pub(crate) fn remove<T: Linked<Tag>>(&mut self, slab: &mut Slab<T>, index: u32) {
        let Links { prev, next } = std::mem::replace(slab[index as usize].links_mut(), Links::NONE);
        match prev {
            NIL => self.head = next,
            prev => slab[prev as usize].links_mut().next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => slab[next as usize].links_mut().prev = prev,
        }
    }

    /// Moves the first element to the end.
    pub(crate) fn rotate<T: Linked<Tag>>(&mut self, slab: &mut Slab<T>) {
        if self.head != self.tail {
            let first = self.head;
            self.remove(slab, first);
            self.push_back(slab, first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Node(Links);

    impl Linked<()> for Node {
        fn links(&self) -> &Links {
            &self.0
        }
        fn links_mut(&mut self) -> &mut Links {
            &mut self.0
        }
    }

    fn listed(list: &List<()>, slab: &Slab<Node>) -> Vec<u32> {
        std::iter::successors(list.front(), |&index| list.next(slab, index)).collect()
    }

    #[test]
    fn elements_leave_from_front_middle_and_end() {
        let mut slab = Slab::new();
        let mut list = List::default();
        for _ in 0..5 {
            let index = slab.insert(Node(Links::NONE)) as u32;
            list.push_back(&mut slab, index);
        }
        list.remove(&mut slab, 0);
        list.remove(&mut slab, 2);
        list.remove(&mut slab, 4);
        assert_eq!(listed(&list, &slab), [1, 3]);
        list.insert_before(&mut slab, Some(1), 0);
        list.insert_before(&mut slab, Some(3), 2);
        list.insert_before(&mut slab, None, 4);
        assert_eq!(listed(&list, &slab), [0, 1, 2, 3, 4]);
        list.rotate(&mut slab);
        assert_eq!(listed(&list, &slab), [1, 2, 3, 4, 0]);
        for index in 0..5 {
            list.remove(&mut slab, index);
        }
        assert!(list.is_empty());
    }
}
