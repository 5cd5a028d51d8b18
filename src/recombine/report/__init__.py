"""Reports about runs; reads run directories only."""
