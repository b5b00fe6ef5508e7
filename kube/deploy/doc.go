// Package deploy puts culvert into a cluster, follows what becomes of it, and takes it out again: by the API, and with the rights of
// the user, whom it tells what is missing. Everything can be done again after an interruption, and changes nothing that stands.
package deploy
