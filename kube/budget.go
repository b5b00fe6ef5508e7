package kube

import "golang.org/x/time/rate"

// What one peer may make a process write to the API server, in bytes of JSON. etcd keeps each
// version of an object for up to ten minutes, and by default 2 GiB in all; when it is full, the
// whole cluster can only be read. The burst is what 20,000 endpoints cost that change 200 times a
// second for a minute.
const (
	BudgetBurst = 200_000_000
	BudgetRate  = 250_000 // a second
)

// NewBudget returns an unused budget for a peer. Who writes takes the bytes from it; below zero,
// it waits.
func NewBudget() *rate.Limiter { return rate.NewLimiter(BudgetRate, BudgetBurst) }
