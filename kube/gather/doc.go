// Package gather collects what a cluster says about its peerings into an archive of gateway/gather,
// with a user's rights: objects, Events, logs, and what gateways and agents answer in their pods.
//
// What is collected is a list; of logs, it is the last lines. No Secret is asked for. Metadata
// loses annotations, a Node its machine's IDs, and a container its volumes and the values of its
// environment.
package gather
