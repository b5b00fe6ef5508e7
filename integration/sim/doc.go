// Package sim runs two whole gateways, wireguard-go included, with the nodes and pods of their clusters, in one bubble of
// testing/synctest: virtual time, no sockets, and a network in memory that fails by a schedule.
//
//	pods ─ node ─ leg ─ gateway rome ═ leg ═ gateway milan ─ leg ─ node ─ pods
//
// A schedule is a string of bytes: how much traffic there is, then faults one after the other. Any bytes are a schedule, so that
// go test -fuzz can make them; a schedule that fails is printed with a sequence diagram and a capture file, and fails again if it is run
// again, most of the time: goroutines and the keys of wireguard-go are not the schedule's.
//
// What is checked while packets flow and when the last fault is over, checks.go of the tests says. mutants.txt holds faults of the product,
// each of which the simulation finds.
package sim
