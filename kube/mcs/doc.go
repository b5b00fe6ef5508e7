// Package mcs reads the objects of the multi-cluster Services API (KEP-1645, in the version of
// sigs.k8s.io/mcs-api), and what a cluster exports by them.
//
// It has no more of the API's types than it uses, because those types bring all of k8s.io/api into
// the program.
package mcs
