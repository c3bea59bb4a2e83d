//! Sweeps: `a=1,2 b=x,y` stands for the four runs of the Cartesian product.

use crate::ConfigError;
use crate::overrides::Override;

/// Every combination of the overrides' alternatives, the last override varying fastest. Alternatives are separated by
/// commas outside of quotes and brackets; an override without a comma is in every run.
///
/// # Errors
/// If an override cannot be read, or there are more than 100 000 runs.
pub fn sweep(overrides: &[String]) -> Result<Vec<Vec<String>>, ConfigError> {
    const MOST: usize = 100_000;
    let mut runs: Vec<Vec<String>> = vec![Vec::new()];
    for text in overrides {
        let alternatives = alternatives(text)?;
        if runs.len().saturating_mul(alternatives.len()) > MOST {
            return Err(ConfigError::Override { text: text.clone(), why: format!("more than {MOST} runs") });
        }
        let longer = |run: &Vec<String>, a: &String| run.iter().chain([a]).cloned().collect::<Vec<String>>();
        runs = runs.iter().flat_map(|run| alternatives.iter().map(move |a| longer(run, a))).collect();
    }
    Ok(runs)
}

fn alternatives(text: &str) -> Result<Vec<String>, ConfigError> {
    let Some((key, value)) = text.split_once('=') else { return Ok(vec![text.to_string()]) };
    let mut parts = vec![String::new()];
    let (mut depth, mut quote, mut escaped) = (0i32, None, false);
    for c in value.chars() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some('"'), '\\') => escaped = true,
            (Some(q), c) if c == q => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth -= 1,
            (None, ',') if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    let full: Vec<String> = parts.iter().map(|p| format!("{key}={}", p.trim())).collect();
    full.iter().try_for_each(|o| Override::parse(o).map(drop))?;
    Ok(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_runs_is_the_product() {
        let runs = |overrides: &[&str]| sweep(&overrides.iter().map(|s| s.to_string()).collect::<Vec<_>>());
        let all = runs(&["a=1,2", "b=x", "c=[1,2],'p,q',{k: [3,4]}"]).unwrap();
        assert_eq!(all.len(), 6);
        assert_eq!(all[1], ["a=1", "b=x", "c='p,q'"]);
        assert_eq!(all[5], ["a=2", "b=x", "c={k: [3,4]}"]);
        assert_eq!(runs(&[r#"a="p\",q",2"#]).unwrap(), [[r#"a="p\",q""#], ["a=2"]]);
        assert_eq!(runs(&[]).unwrap(), [Vec::<String>::new()]);
        assert!(runs(&["a=1,2", "b=["]).is_err());
        let many = "a=".to_string() + &vec!["1"; 1000].join(",");
        assert!(runs(&[&many, &many]).unwrap_err().to_string().contains("more than 100000 runs"));
    }
}
