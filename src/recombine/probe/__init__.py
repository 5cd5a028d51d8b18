"""Look inside a network: which modules can be read from it, what its latent codes look like, and whether they drive it.

`probe_run` leaves two files in a run directory; `examine` and `examine_activations` return the same for any model on a task
and for a file of activations. A key is missing where its part was skipped; `skipped` then says why.

probe.json
    run, task, label            of the run (not from `examine`)
    version, num_instances      of this format (2); instances a split
    reading                     {instances, codes, labels}: what was read, in words; and the instances of each variant
    modules                     names, in the order of the columns of `labels`
    num_compositions            {fit, id, ood}: how many were seen
    sites                       [{name, kind, layer}]: codes.0, residual.0, hidden.0, ...
    decoders                    {site: {
        num_features
        strength                {logistic, ridge}: chosen on the fitting side
        cross_validated         {f1, accuracy, auc, exact, r2}: on training compositions left out of the fit
        id, ood                 {f1, accuracy, auc, exact, r2,
                                 majority, control, selectivity, untrained: each {f1, accuracy, auc, exact, r2}};
                                 r2 alone where labels are not 0 and 1
        modules                 {id, ood: {module: {f1, accuracy, auc} or {r2}}} }}
    decoders_VARIANT            the same of the codes of other instances. Of fuzzy logic: pictured (every function with the
                                same examples, as in figure 2B; pictures are made of these) and same_query
    best_site                   the site with the best cross-validated score: chosen without looking at id or ood
    structure                   {site: {target, module: {purity, chance, silhouette}}}
    similarity                  {site: {modules: [names], cosine: [[...]], centred: [[...]]}}
    tsne                        {sites: [...], num_rows, perplexity}; coordinates are in probe.npz
    ablations                   {metric, num_instances, base: {test, ood},
                                 layers: [{layer, kind: zero | mean | swap, test, ood: {change, low, high}}],
                                 heads: [{layer, head, kind: zero | mean, test, ood: {change, low, high}}]}
    swap                        of SRAVEN: {kind: "rules", num_instances, rules: [names], splits: {test, ood: {num_rows,
                                 base: {other, own, neither, interval}, base_accuracy,
                                 arms: [{layers: [...], keys: probed | all, other, own, neither, interval, same_rule}],
                                 by_rule: [[own rule][swapped-in rule], null where there is no instance]}}}
                                of fuzzy logic: {kind: "functions", num_instances, splits: {test, ood: {num_rows,
                                 arms: [{layers, keys, follows, interval}]}}}
    skipped                     {part or site: reason}
    seconds                     {collect, decode, structure, tsne, ablate, swap, total}
    tsne_share                  of the total, 0 to 1

probe.npz
    activations.SITE            (rows, features) of every row that was decoded from: the codes, or all sites on request
    labels split composition target modules compositions        its columns (see `observations`); `composition` is a number
                                in `compositions`, which are in words
    sample.activations.SITE     (sampled, features): raw codes of the rows that are pictured (figure A8)
    sample.labels sample.split sample.composition sample.target sample.modules sample.compositions      their columns
    tsne.SITE                   (sampled, 2)
"""

from recombine.probe.collect import collect
from recombine.probe.decode import decode
from recombine.probe.examine import Examination, examine, examine_activations, is_probed, probe_run
from recombine.probe.observations import Observations, load_observations
from recombine.probe.readings import Reading, read_task

__all__ = [
    "Examination",
    "Observations",
    "Reading",
    "collect",
    "decode",
    "examine",
    "examine_activations",
    "is_probed",
    "load_observations",
    "probe_run",
    "read_task",
]
