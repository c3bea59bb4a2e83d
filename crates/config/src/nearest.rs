//! The known name nearest to a misspelt one.

/// The known name with the fewest letters changed, if that is few enough to be meant; among equals, the first.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    let distance = |k: &str| strsim::damerau_levenshtein(&wanted, &k.to_lowercase());
    let best = known.into_iter().min_by_key(|k| distance(k))?;
    let own = name.rsplit('.').next().unwrap_or(name).chars().count();
    (distance(best) <= 2.max(own * 2 / 5)).then_some(best)
}

/// The end of a message about an unknown name: what was meant, else what there is.
pub(crate) fn meant(name: &str, known: &[String]) -> String {
    const MOST: usize = 24;
    if let Some(best) = nearest(name, known.iter().map(String::as_str)) {
        return format!("; the nearest is '{best}'");
    }
    match known.len() {
        0 => String::new(),
        n if n <= MOST => format!("; there are {}", known.join(", ")),
        n => format!("; there are {} and {} more", known[..MOST].join(", "), n - MOST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_near() {
        let known = ["optimizer.lr", "optimizer.weight_decay", "trainer.precision"];
        assert_eq!(nearest("optimizer.weigth_decay", known), Some("optimizer.weight_decay"));
        assert_eq!(nearest("Optimizer.LR", known), Some("optimizer.lr"));
        assert_eq!(nearest("elephant", known), None);
        assert_eq!(nearest("x", []), None);
        let said = meant("elephant", &known.map(String::from));
        assert_eq!(said, "; there are optimizer.lr, optimizer.weight_decay, trainer.precision");
    }
}
