//! The Rust examples of the README and of the page on LLM tokens. Each line of them is in a function here,
//! and the functions run.

use std::time::Duration;

use spillgate::reservation::{Reserve, Usage};
use spillgate::{Cost, Policy};

mod first {
    use spillgate::{Limiter, Policy, Request};

    pub(super) async fn runs(server: &str) -> Result<(), Box<dyn std::error::Error>> {
        let text = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"1/hour\"]";
        let limiter =
            Limiter::builder().policy(Policy::from_toml(text)?).redis(server).build().await?;
        let mut denied = 0;
        for _ in 0..2 {
            let request = Request::new().with("ip", "203.0.113.7").with("path", "/login");
            let decision = limiter.check(&request).await; // never fails: an outage is a decision
            if !decision.allowed() {
                denied += 1;
                println!(
                    "denied: {:?}, retry after {:?}",
                    decision.reason(),
                    decision.retry_after()
                );
            }
        }
        assert_eq!(denied, 1);
        Ok(())
    }
}

async fn run_the_model() -> u64 {
    512
}

/// Returns whether the job runs, by the page's example.
async fn job_runs(policy: &str) -> Result<bool, Box<dyn std::error::Error>> {
    use spillgate::{Limiter, Request};
    let limiter = Limiter::builder().policy(Policy::from_toml(policy)?).build().await?;
    let mut has_run = false;
    let request =
        Request::new().with("user", "ada").costing(Cost::requests(1).and("tokens", 4_000));
    let decision = limiter
        .reserve(&request, &Reserve::lasting(Duration::from_secs(60)).under("job-17"))
        .await?;
    match decision.receipt() {
        Some(receipt) => {
            let tokens = run_the_model().await;
            limiter.settle(receipt, &Usage::of_unit("tokens", tokens)).await?;
            has_run = true;
        }
        None => println!("denied: {:?}", decision.reason()),
    }
    Ok(has_run)
}

#[test]
fn the_examples_stop_denied_jobs_and_run_unmatched_ones() {
    let server = spillgate_testkit::RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        first::runs(&server.url()).await.unwrap();
        let rule = |quota: &str| {
            format!(
                "[[rule]]\nname = \"r\"\nkey = [\"user\"]\nlimits = [{{ quota = {quota:?}, unit = \"tokens\" }}]"
            )
        };
        assert!(job_runs(&rule("10000/minute")).await.unwrap());
        // A cost above the limit is denied for ever, not only now.
        assert!(!job_runs(&rule("1000/minute")).await.unwrap());
        assert!(job_runs("").await.unwrap(), "no rule matches");
    });
}

#[test]
fn every_line_of_the_examples_runs_here() {
    let readme = include_str!("../../../../README.md");
    let tokens = include_str!("../../../../docs/how-to/llm-tokens.md");
    let squeezed = |text: &str| text.split_whitespace().collect::<String>();
    let here = squeezed(include_str!("readme.rs"));
    let examples = [
        (readme, "let decision = limiter.check(&request)"),
        (tokens, "let decision = limiter.reserve("),
    ];
    for (page, start) in examples {
        let (_, rest) = page.split_once(start).expect(start);
        let (example, _) = rest.split_once("```").unwrap();
        for line in example.lines().map(|line| line.split("//").next().unwrap_or_default()) {
            assert!(here.contains(&squeezed(line)), "{line}");
        }
    }
}
