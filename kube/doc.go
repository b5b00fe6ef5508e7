// Package kube follows a cluster, for whatever is made of its objects.
//
//	API server ─ watches ─► Loop ─► Sets ─► rounds ─► Teller ─► Events, status
//
// A Loop keeps Sets of objects and begins rounds, in which its owner derives and applies what they
// ask for. A Teller says what is wrong with objects, in the log and by Events. Causes logs why
// requests fail.
package kube
