//! `models`: the built-in model, the known full-size geometries and the recipes.
use super::state::{describe, known_models};
use super::{Exit, print, print_json};
use anyhow::Result;
use clap::Args;
use harness::builtin;
use harness::families::Summary;
use harness::recipe::Recipe;
use kernels::numeric::NumericClass;
use ledger::grouped;
use serde::Serialize;

/// Lists the built-in model, the known full-size geometries and the recipes.
#[derive(Args, Debug)]
pub struct ModelsArgs {
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// One model.
#[derive(Debug, Serialize)]
struct ModelFacts {
    name: String,
    family: &'static str,
    recipe: String,
    /// Whether its weights are in the executable.
    builtin: bool,
    weight_bytes: u64,
    /// Weights of the draft head, which no step without it reads; 0 where the model has none.
    draft_bytes: u64,
    sequence_bytes_per_token: u64,
    #[serde(flatten)]
    summary: Summary,
}

/// One recipe.
#[derive(Debug, Serialize)]
struct RecipeFacts {
    name: &'static str,
    numeric_class: NumericClass,
}

#[derive(Debug, Serialize)]
struct Listed {
    models: Vec<ModelFacts>,
    recipes: Vec<RecipeFacts>,
}

fn list() -> Result<Listed> {
    let mut models = Vec::new();
    for name in [builtin::NAME].into_iter().chain(known_models().into_iter().map(|k| k.name)) {
        let d = describe(name, None)?;
        let summary = d.model.summary();
        let weight_bytes = d.model.manifest(&d.recipe)?.tensor_bytes();
        models.push(ModelFacts {
            name: d.name,
            family: d.model.family(),
            builtin: name == builtin::NAME,
            weight_bytes,
            draft_bytes: d.model.manifest_with_draft(&d.recipe)?.tensor_bytes() - weight_bytes,
            sequence_bytes_per_token: summary.kv_values_per_token * d.recipe.numeric_class.kv_bytes(),
            recipe: d.recipe.name,
            summary,
        });
    }
    let mut recipes = Vec::new();
    for name in Recipe::names() {
        recipes.push(RecipeFacts { name, numeric_class: Recipe::builtin(name)?.numeric_class });
    }
    Ok(Listed { models, recipes })
}

/// Runs the command.
pub fn run(args: &ModelsArgs) -> Result<Exit> {
    let listed = list()?;
    if args.json {
        print_json(&listed)?;
        return Ok(Exit::Done);
    }
    let mut out = String::new();
    for m in &listed.models {
        let s = &m.summary;
        let source = if m.builtin { "built in, with weights" } else { "geometry" };
        out += &format!("{:<16} {} in {} ({source})\n", m.name, m.family, m.recipe);
        out += &format!(
            "  {} layers, hidden {}, vocabulary {}, context {}\n",
            s.layers, s.hidden, s.vocab, s.max_context
        );
        if let Some(moe) = s.moe {
            out += &format!("  {} layers of {} experts, {} a token\n", moe.layers, moe.experts, moe.top_k);
        }
        out += &format!(
            "  weights {} B; a sequence: {} B a token, {} B of state\n",
            grouped(m.weight_bytes),
            grouped(m.sequence_bytes_per_token),
            grouped(s.state_bytes)
        );
        if m.draft_bytes > 0 {
            out += &format!("  draft head {} B, read only by steps that draft\n", grouped(m.draft_bytes));
        }
    }
    out += "recipes\n";
    for r in &listed.recipes {
        out += &format!("  {:<14} class {}\n", r.name, r.numeric_class);
    }
    print(&out)?;
    Ok(Exit::Done)
}
