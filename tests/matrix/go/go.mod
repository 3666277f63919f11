// go.sum beside this file pins the source of each release in releases.csv. There are no requirements here: a release is
// built from its own go.mod and go.sum, which are part of its module, so the module's two lines pin every byte.
//
// Of Kubernetes, also the staging modules: its go.mod replaces them by folders that its module does not contain.
// jobset 0.9.1 is unknown to Go's checksum database: its lines were computed from the tag v0.9.1 of its repository.
module releases

go 1.26.0
