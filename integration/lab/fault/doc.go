// Package fault has the mistakes that a lab can make. A fault changes configurations, stops a
// process, or changes a host's kernel. Configurations are never edited but written again for the
// current set of faults, and processes whose configuration has changed are restarted; so faults can
// be combined and mended in any order. Kernels need neither netfilter nor traffic control: a
// firewall is a policy rule, a black hole for large packets a link with a small MTU.
package fault
