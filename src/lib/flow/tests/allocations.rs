//! Flow control allocates nothing for a request that finds a seat.

#![expect(unsafe_code, reason = "an allocator that counts")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use ferrokube_flow::priority::FlowAction;
use ferrokube_flow::{Limits, with_budgets};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_request_that_finds_a_seat_allocates_nothing() {
    let flow = support::flow(&Limits::default());
    let action: Arc<dyn FlowAction> = Arc::new(support::CreateAction);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for (name, user) in support::users() {
        let allocated = runtime.block_on(async {
            // The first ones make the tables that the others reuse.
            for _ in 0..10 {
                with_budgets(Arc::clone(&flow), support::pass(&flow, &user, &action)).await;
            }
            let before = ALLOCATIONS.with(Cell::get);
            for _ in 0..1000 {
                with_budgets(Arc::clone(&flow), support::pass(&flow, &user, &action)).await;
            }
            ALLOCATIONS.with(Cell::get) - before
        });
        assert_eq!(allocated, 0, "{name}");
    }
}
