"""Generated messages of the Remote Execution API v2; see reapi.proto for their source and how to make them."""
