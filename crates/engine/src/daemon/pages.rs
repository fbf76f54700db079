//! Pages of things about which reactors must be asked one by one.

use api::node::ApiResult;
use api::{Page, Paging};
use futures::{StreamExt as _, stream};
use model::ProblemKind;

/// How many questions are under way at once. One after another, a page would take as many turns of
/// a reactor as it has things, and on a busy machine longer than whoever lists a node waits.
const AT_ONCE: usize = 64;

/// A page of the things with these ids, which are sorted, without those that are gone by now.
pub(super) async fn page_of<I: ToString, T, F: Future<Output = ApiResult<T>>>(
    paging: Paging,
    ids: Vec<I>,
    find: impl Fn(I) -> F,
) -> ApiResult<Page<T>> {
    let Page { items, after } = paging.cut(ids, ToString::to_string)?;
    Ok(Page { items: find_all(items, find).await?, after })
}

/// What is found of these, in their order, without what is gone by now.
pub(super) async fn find_all<I, T, F: Future<Output = ApiResult<T>>>(
    ids: Vec<I>,
    find: impl Fn(I) -> F,
) -> ApiResult<Vec<T>> {
    let mut all = Vec::with_capacity(ids.len());
    let mut answers = stream::iter(ids).map(find).buffered(AT_ONCE);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(found) => all.push(found),
            Err(problem) if problem.kind == ProblemKind::NotFound => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use model::Problem;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn questions_are_under_way_side_by_side_and_answers_keep_their_order() {
        let asked = AtomicUsize::new(0);
        let everybody_asked = Semaphore::new(0);
        let find = async |id: u32| {
            // Nobody is answered before all have asked.
            if asked.fetch_add(1, Ordering::Relaxed) + 1 == 9 {
                everybody_asked.add_permits(9);
            }
            let _turn = everybody_asked.acquire().await;
            match id {
                3 => Err(Problem::new(ProblemKind::NotFound, "it is gone")),
                _ => Ok(id * 10),
            }
        };
        let paging = Paging { limit: Some(9), after: None };
        let page = page_of(paging, (1..=9).chain([91]).collect(), find).await.unwrap();
        assert_eq!(page.items, [10, 20, 40, 50, 60, 70, 80, 90]);
        assert_eq!(page.after.as_deref(), Some("9"));
    }

    #[tokio::test]
    async fn what_cannot_be_asked_is_said() {
        let find =
            async |_: u32| Err::<u32, _>(Problem::new(ProblemKind::Unavailable, "it is shut"));
        let failed = find_all(vec![1, 2], find).await.unwrap_err();
        assert_eq!(failed.kind, ProblemKind::Unavailable);
    }
}
