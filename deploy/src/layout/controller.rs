//! Placement of the controller, and its address.
use super::Site;
use crate::error::DeployError;
use crate::request::{NetworkMode, Request, Target};
use tidemill_spec::infrastructure::Infrastructure;

/// Returns the controller's site; adds one without workers if needed.
pub(super) fn choose(
    request: &Request<'_>,
    infrastructure: Option<&Infrastructure>,
    sites: &mut Vec<Site>,
) -> Result<usize, DeployError> {
    match &request.controller {
        Some(wanted) => named(wanted, infrastructure, sites),
        None => highest(infrastructure, sites),
    }
}

/// Returns the site of a location or a tier.
fn named(
    wanted: &str,
    infrastructure: Option<&Infrastructure>,
    sites: &mut Vec<Site>,
) -> Result<usize, DeployError> {
    let by_location = |site: &Site| site.location.as_deref() == Some(wanted);
    let of_location: Vec<usize> = indices(sites, by_location);
    if let [only] = of_location[..] {
        return Ok(only);
    }
    let of_tier = indices(sites, |site| site.tier == wanted);
    if !of_tier.is_empty() {
        return reached(wanted, &of_tier, sites);
    }
    // A location of the infrastructure without workers in the plan.
    let tiers = infrastructure.map(|infrastructure| infrastructure.tiers.as_slice()).unwrap_or_default();
    let all = tiers.iter().flat_map(|tier| match tier.locations.is_empty() {
        true => vec![(tier.id.as_str(), None)],
        false => tier.locations.iter().map(|location| (tier.id.as_str(), Some(location.as_str()))).collect(),
    });
    let all: Vec<(&str, Option<&str>)> = all.collect();
    let is_it = |(tier, location): &&(&str, Option<&str>)| *location == Some(wanted) || *tier == wanted;
    let mut empty: Vec<Site> =
        all.iter().filter(is_it).map(|(tier, location)| Site::new(tier, *location, infrastructure)).collect();
    if !empty.is_empty() && of_location.is_empty() {
        let every: Vec<usize> = (0..empty.len()).collect();
        let index = reached(wanted, &every, &empty)?;
        sites.push(empty.swap_remove(index));
        return Ok(sites.len() - 1);
    }
    let own = sites.iter().map(|site| (site.tier.as_str(), site.location.as_deref()));
    let mut known: Vec<String> =
        own.chain(all).map(|(tier, location)| location.unwrap_or(tier).to_owned()).collect();
    known.sort();
    known.dedup();
    Err(DeployError::NoSuchLocation { found: wanted.to_owned(), known })
}

fn indices(sites: &[Site], is_it: impl Fn(&Site) -> bool) -> Vec<usize> {
    (0..sites.len()).filter(|index| is_it(&sites[*index])).collect()
}

/// Returns the site of the highest tier with workers.
fn highest(infrastructure: Option<&Infrastructure>, sites: &[Site]) -> Result<usize, DeployError> {
    let tier = match infrastructure {
        // They are in the order of the tiers.
        Some(_) => sites.last().map(|site| site.tier.clone()),
        None => {
            let rank = |tier: &str| ["edge", "hub", "cloud"].iter().position(|known| *known == tier);
            sites.iter().max_by_key(|site| rank(&site.tier)).map(|site| site.tier.clone())
        }
    };
    let tier = tier.unwrap_or_default();
    reached(&tier, &indices(sites, |site| site.tier == tier), sites)
}

/// Returns the only one of these, or the only reachable one.
fn reached(tier: &str, of_tier: &[usize], sites: &[Site]) -> Result<usize, DeployError> {
    if let [only] = of_tier {
        return Ok(*only);
    }
    let with_address: Vec<usize> = of_tier
        .iter()
        .copied()
        .filter(|index| sites[*index].reached_at.is_some() && !sites[*index].only_dials)
        .collect();
    match with_address[..] {
        [only] => Ok(only),
        _ => {
            let name = |index: &usize| sites[*index].location.clone().unwrap_or_else(|| tier.to_owned());
            let known = of_tier.iter().map(name).collect();
            Err(DeployError::WhichLocation { tier: tier.to_owned(), known })
        }
    }
}

/// Returns its address for the others.
pub(super) fn address(
    target: Target,
    network: NetworkMode,
    sites: &[Site],
    controller: usize,
) -> Result<String, DeployError> {
    if target == Target::Kubernetes || (target == Target::Compose && network == NetworkMode::Bridge) {
        return Ok(super::SERVICE.to_owned());
    }
    let site = &sites[controller];
    if let Some(address) = &site.reached_at {
        return Ok(address.clone());
    }
    if sites.len() == 1 {
        return Ok("localhost".to_owned());
    }
    let location =
        site.location.as_ref().map_or_else(String::new, |location| format!("location: {location}, "));
    Err(DeployError::NoAddress {
        location: site.name.clone(),
        entry: format!("- {{tier: {}, {location}address: HOST}}", site.tier),
    })
}
