//! A service and its client over the transport service of the machine.
//!
//! ```text
//! tidemill net serve &
//! tidemill-prices serve &
//! tidemill-prices get apple
//! tidemill-prices watch apple
//! tidemill-prices get apple tcp://hub.example:7500     # of another machine
//! ```
mod shop {
    tidemill_rpc::include_stubs!("shop");
}

use shop::{GetReply, GetRequest, Prices, PricesClient, PricesServer};
use std::time::Duration;
use tidemill_rpc::{Code, Net, Replies, Request, Response, Status};

struct Shop;

fn price(item: &str) -> Result<GetReply, Status> {
    let cents = match item {
        "apple" => 45,
        "melon" => 320,
        _ => return Err(Status::new(Code::NotFound, format!("the shop has no {item}"))),
    };
    Ok(GetReply { item: item.to_owned(), cents })
}

impl Prices for Shop {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetReply>, Status> {
        price(&request.message.item).map(Response::new)
    }

    async fn watch(&self, request: Request<GetRequest>, replies: Replies<GetReply>) -> Result<(), Status> {
        let mut reply = price(&request.message.item)?;
        for _ in 0..5 {
            replies.send(reply.clone()).await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
            reply.cents += 1;
        }
        Ok(())
    }
}

fn usage() -> Status {
    Status::invalid_argument("usage: tidemill-prices serve | get ITEM [ADDRESS...] | watch ITEM [ADDRESS...]")
}

async fn run(arguments: &[String]) -> Result<(), Status> {
    let net = Net::connect().await?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (verb, item, at) = match arguments.as_slice() {
        ["serve"] => {
            let _serving = net.serve(PricesServer::new(Shop)).await?;
            println!("serves {}", PricesClient::SERVICE);
            return std::future::pending().await;
        }
        [verb @ ("get" | "watch"), item, at @ ..] => (*verb, *item, at),
        _ => return Err(usage()),
    };
    let prices = match at {
        [] => PricesClient::connect(&net).await?,
        at => PricesClient::connect_at(&net, at).await?,
    };
    let request = Request::new(GetRequest { item: item.to_owned() }).within(Duration::from_secs(5));
    if verb == "get" {
        let reply = prices.get(request).await?.into_inner();
        println!("{}: {}.{:02} €", reply.item, reply.cents / 100, reply.cents % 100);
        return Ok(());
    }
    let mut replies = prices.watch(request).await?;
    while let Some(reply) = replies.next().await? {
        println!("{}: {}.{:02} €", reply.item, reply.cents / 100, reply.cents % 100);
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(status) => {
            eprintln!("tidemill-prices: {status}");
            std::process::ExitCode::FAILURE
        }
    }
}
