//! Services that are upgraded or crash, and programs that join again.
use crate::place::{PATIENCE, Place, until};
use tidemill_collective::client::{Error, Group};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::protocol::FailureKind;

fn sum(group: &Group) -> Result<i64, Error> {
    let buffer = group.buffer(Element::I64, 100)?;
    buffer.write(0, &[i64::from(group.rank()) + 1; 100])?;
    group.all_reduce(&buffer, Reduction::Sum)?.wait()?;
    Ok(buffer.to_vec::<i64>()?[99])
}

/// Computes until that fails, joins again, and computes once more.
fn survives(group: &Group) -> (Error, i64) {
    let error = loop {
        match sum(group) {
            Ok(sum) => assert_eq!(sum, 3),
            Err(error) => break error,
        }
    };
    let group = group.rejoin(PATIENCE).unwrap();
    assert_eq!(group.members(), [0, 1]);
    (error, sum(&group).unwrap())
}

#[test]
fn programs_of_an_upgraded_service_learn_it_and_join_again() {
    let mut place = Place::new("a", None);
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| place.join("stays", 1, 2));
        (place.join("stays", 0, 2), other.join().unwrap())
    });
    std::thread::scope(|scope| {
        let threads = [&one, &other].map(|group| scope.spawn(|| survives(group)));
        until("they compute", || place.group("stays").is_some_and(|group| group.figures.operations > 0));
        place.service.take().unwrap().retire();
        place.start();
        for thread in threads {
            let (error, sum) = thread.join().unwrap();
            assert!(error.to_string().contains("was upgraded: join again"), "{error}");
            assert_eq!(sum, 3);
        }
    });
    // The connection of before says the same for ever.
    let error = sum(&one).unwrap_err();
    assert!(matches!(&error, Error::Broken(reason) if reason.contains("upgraded")), "{error}");
}

#[test]
fn programs_of_other_hosts_wait_for_those_of_an_upgraded_service() {
    let a = Place::new("a", None);
    let mut b = Place::new("b", Some(&a));
    until("both are registered", || a.listing().hosts.len() == 2);
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| b.join("stays", 1, 2));
        (a.join("stays", 0, 2), other.join().unwrap())
    });
    std::thread::scope(|scope| {
        let (one, other) = (scope.spawn(|| survives(&one)), scope.spawn(|| survives(&other)));
        until("they compute", || a.group("stays").is_some_and(|group| group.figures.operations > 0));
        b.service.take().unwrap().retire();
        b.start();
        let (error, sum) = one.join().unwrap();
        match error {
            Error::Failed(failure) => {
                assert_eq!((failure.kind, failure.host.as_str()), (FailureKind::Lost, "b"), "{failure}");
                assert!(failure.text.contains("upgraded"), "{failure}");
            }
            other => panic!("{other}"),
        }
        assert_eq!((sum, other.join().unwrap().1), (3, 3));
    });
}

#[test]
fn programs_join_again_after_a_crash_of_the_service_that_introduces_them() {
    let mut a = Place::new("a", None);
    let b = Place::new("b", Some(&a));
    until("both are registered", || a.listing().hosts.len() == 2);
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| b.join("stays", 1, 2));
        (a.join("stays", 0, 2), other.join().unwrap())
    });
    let address = a.address();
    std::thread::scope(|scope| {
        let threads = [scope.spawn(|| survives(&one)), scope.spawn(|| survives(&other))];
        until("they compute", || a.group("stays").is_some_and(|group| group.figures.operations > 0));
        a.service = None;
        a.options.listen = Some(address);
        until("the address is free", || {
            a.service = tidemill_collective::service::Collectives::start(a.options.clone()).ok();
            a.service.is_some()
        });
        for thread in threads {
            assert_eq!(thread.join().unwrap().1, 3);
        }
    });
}
